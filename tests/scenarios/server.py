"""A server in small: spawned workers that load their model file, or compile it and save it, and answer requests.

Run as a program with a JSON object (Options) as its argument, it starts the workers, starts one that dies anew, has each
answer the requests, and prints what became of them. What is done on failure is what vLLM does: a file that does not load
is compiled again, one that cannot be saved is a line in the log.
"""

from __future__ import annotations

import os

if os.environ.get("SCENARIO_ACTIVATION") == "import":
    import safecache  # noqa: F401

import json
import multiprocessing
import sys
import time
import traceback
from importlib import metadata

REQUESTS = [(2, 16), (3, 16), (5, 24)]
STARTS = 3


def load_general_plugins() -> None:
    """As vLLM does in each process: what fails to load is logged, and what fails when called is not caught."""
    for plugin in metadata.entry_points(group="vllm.general_plugins"):
        try:
            function = plugin.load()
        except Exception:
            print(f"plugin {plugin.name} failed to load", file=sys.stderr)
        else:
            function()


def log(text: str) -> None:
    print(f"server: {text} [pid {os.getpid()}]", file=sys.stderr, flush=True)


class Worker:
    """One rank: its model, and the function that was loaded or compiled for it."""

    def __init__(self, rank: int, options: dict) -> None:
        import torch

        from scenarios import decoder, pieces, sabotage

        self.options = options
        self.device = options["device"]
        torch._functorch.config.strict_autograd_cache = True
        pieces.Settings.one_file = options["one_file"]
        if not options["one_file"]:
            torch._functorch.config.bundled_autograd_cache = False
        self.directory = pieces.Settings.directory = os.path.join(options["root"], f"rank_{rank}")
        os.makedirs(self.directory, exist_ok=True)
        self.path = os.path.join(self.directory, "model")
        self.model = decoder.make(self.device)
        self.reference = decoder.reference(self.model)
        self.said = {"source": "loaded", "failures": []}
        if options["sabotage"]:
            sabotage.begin(options["sabotage"], options["root"])

    def start(self) -> None:
        started = time.perf_counter()
        self.function = self._load() or self._compile()
        self.said["seconds"] = round(time.perf_counter() - started, 2)

    def _load(self):
        import torch

        if not os.path.exists(self.path):
            return None
        try:
            with open(self.path, "rb") as file:
                function = torch.compiler.load_compiled_function(file)
        except Exception as error:
            log(f"Compiling model again due to a load failure from {self.path}, reason: {type(error).__name__}")
            self.said["failures"].append(f"{type(error).__name__}: {error}")
            return None
        function.disable_guard_check()
        return function

    def _compile(self):
        import torch

        from scenarios import decoder, pieces, sabotage

        # torch 2.11 offers it only behind this setting.
        switch = {"enable_aot_compile": True} if hasattr(torch._dynamo.config, "enable_aot_compile") else {}
        tokens = decoder.prompt(4, 20, self.device)
        for dimension in (0, 1):
            torch._dynamo.mark_dynamic(tokens, dimension)
        with torch._dynamo.config.patch(switch), torch.no_grad():
            compiled = torch.compile(self.model.forward, fullgraph=True, backend=pieces.backend)
            function = compiled.aot_compile(((tokens,), {}))
        function.disable_guard_check()
        self.said["source"] = "compiled"
        temporary = f"{self.path}.{os.getpid()}.tmp"
        try:
            function.save_compiled_function(temporary)
            sabotage.reached("save", temporary)
            os.replace(temporary, self.path)
        except Exception as error:
            log(f"Failed to save the compiled function to {self.path}, reason: {type(error).__name__}")
            self.said["failures"].append(f"{type(error).__name__}: {error}")
        return function

    def answer(self, batch: int, length: int) -> dict:
        import torch

        from scenarios import decoder

        tokens = decoder.prompt(batch, length, self.device)
        with torch.no_grad():
            logits, expected = self.function(self.model, tokens), self.reference(tokens)
        error = (logits.double() - expected).abs().max() / expected.abs().max()
        return {"error": error.item(), "logits": logits[:, -1, :8].flatten().tolist()}

    def status(self) -> dict:
        import torch

        from scenarios import pieces

        safecache = sys.modules.get("safecache")
        active = safecache is not None and safecache.is_active()
        told = {"compiled": pieces.Settings.compiled, "active": active, "torch": torch.__version__}
        told["triton"] = getattr(sys.modules.get("triton"), "__version__", None)
        return self.said | told | {"stats": safecache.stats() if active else {}}


def work(rank: int, options: dict, pipe) -> None:
    """A worker's process."""
    if os.environ.get("SCENARIO_ACTIVATION") == "plugin":
        import torch._inductor.compile_fx  # noqa: F401  as `import vllm` has by then

        load_general_plugins()
    try:
        worker = Worker(rank, options)
        worker.start()
        pipe.send({})
        while request := pipe.recv():
            pipe.send(worker.answer(*request))
        pipe.send(worker.status())
    except Exception as error:
        traceback.print_exc()
        pipe.send({"failed": f"{type(error).__name__}: {error}", "chain": [str(e) for e in chain(error)]})


def chain(error):
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


class Supervised:
    """A worker as the server sees it."""

    def __init__(self, context, rank: int, options: dict) -> None:
        self.context, self.rank, self.options = context, rank, options
        self.deaths = []
        self.failed = None
        self.start()

    def start(self) -> None:
        self.pipe, theirs = self.context.Pipe()
        self.process = self.context.Process(target=work, args=(self.rank, self.options, theirs), daemon=True)
        self.process.start()
        theirs.close()

    def get(self):
        """What the worker sends next; None if it has died."""
        try:
            return self.pipe.recv()
        except (EOFError, ConnectionResetError):
            self.process.join()
            self.deaths.append(self.process.exitcode)
            return None

    def bring_up(self) -> bool:
        """A worker that dies is started again, without what killed it."""
        for _ in range(STARTS):
            said = self.get()
            if said is not None:
                self.failed = said or None
                return not said
            log(f"worker {self.rank} died with {self.deaths[-1]} and is started again")
            self.options = self.options | {"sabotage": None}
            self.start()
        return False

    def serve(self) -> dict:
        told = {"rank": self.rank, "up": self.bring_up(), "answers": []}
        if told["up"]:
            for request in REQUESTS:
                self.pipe.send(request)
                told["answers"].append(self.get())
            self.pipe.send(None)
            told |= self.get() or {}
        self.process.join(60)
        return told | {"deaths": self.deaths} | (self.failed or {})


def main() -> None:
    options = {"sabotage": None, "one_file": True} | json.loads(sys.argv[1])
    context = multiprocessing.get_context("spawn")
    workers = [Supervised(context, rank, options) for rank in range(options["workers"])]
    print(json.dumps([worker.serve() for worker in workers]), flush=True)


if __name__ == "__main__":
    main()
