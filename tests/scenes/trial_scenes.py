"""Entries that verify, and whose code ends the process, or fails, as soon as it is run."""

from __future__ import annotations

import contextlib
import os
import pkgutil
import shutil
import subprocess

from scenes import model_scenes

# What the code of an entry does, where it stands: in the graph's own function, or at its import.
SEGFAULT = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
KILL = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
KILL_IF_TOLD = "import os, signal; 'KILL_ME' in os.environ and os.kill(os.getpid(), signal.SIGKILL)"
FAIL = "raise AssertionError('expected size 8 == 9')"
COMPLAIN = "import torch; torch.mm(torch.zeros(2, 3), torch.zeros(2, 3))"
RUN_OUT = "import torch; raise torch.OutOfMemoryError('Tried to allocate 1 GiB')"
INTERRUPT = "raise KeyboardInterrupt"


def spoil(what, where="run", is_backward=False):
    """Have the code of every FX graph entry do this as well, and seal it again, under the key of the test.

    ``is_backward``: of backward graphs alone.
    """
    import pickle

    from torch._inductor.codecache import FxGraphCache, PyCodeCache

    from safecache.entries import saving
    from safecache.places import layout
    from safecache.reporting.kinds import Kind
    from safecache.signing import seal

    keys = []
    for entry in [each for each in layout.walk(_root()) if each.kind is Kind.FX_ENTRY]:
        with open(entry.path, "rb") as file:
            graph = pickle.loads(seal.strip_unverified(file.read()))
        if is_backward and not graph.fx_kwargs["is_backward"]:
            continue
        graph.source_code = _with(graph.source_code, what, where)
        graph.cache_key, graph.cache_linemap = PyCodeCache.write(graph.source_code)[0], None
        os.unlink(entry.path)
        FxGraphCache._write_to_local_cache(
            entry.cache_key, saving.seal_payload(pickle.dumps(graph), Kind.FX_ENTRY, entry.cache_key)
        )
        keys.append(entry.cache_key)
    return keys


def _with(source, what, where):
    if where == "import":
        return f"{what}\n{source}"
    head = next(each for each in ("    def call(self, args):\n", "def call(args):\n") if each in source)
    indent = "        " if "self" in head else "    "
    return source.replace(head, f"{head}{indent}{what}\n")


def spoil_libraries():
    """Replace every library of a graph by one that ends the process when it is loaded, and attest that under the test's key."""
    from pathlib import Path

    from safecache.places.layout import CodeFile
    from safecache.store import gate

    crash = "__attribute__((constructor)) static void f() { *(volatile int*)0 = 0; }"
    found = sorted(Path(_root()).glob("??/*.main.so"))
    for path in found:
        path.unlink()
        command = ["g++", "-xc++", "-", "-shared", "-fPIC", "-o", str(path)]
        subprocess.run(command, input=crash, text=True, check=True)
        gate.attest_file(CodeFile(str(path), _root()))
    return len(found)


def _root():
    return os.environ["TORCHINDUCTOR_CACHE_DIR"]


def infer(times=1, faulthandler_to="", files=False):
    """A model that is compiled for inference alone, checked against eager."""
    import faulthandler

    import torch
    from torch._dynamo.utils import counters

    if faulthandler_to:
        file = open(faulthandler_to, "w")  # noqa: SIM115  for as long as the process lives
        faulthandler.enable(file)
    torch.manual_seed(0)
    x = torch.randn(8, 16)
    with torch.no_grad():
        compiled = torch.compile(_model)
        for _ in range(times):
            torch.testing.assert_close(compiled(x), _model(x))
    hits = counters["aot_autograd"]["autograd_cache_hit"]
    return {"hits": hits, "faulthandler": faulthandler.is_enabled(), "markers": _markers() if files else None}


def _markers():
    """What is running, by all markers that are there."""
    from pathlib import Path

    from safecache.crash_guard import markers

    found = Path(_root(), ".safecache", "trials").glob("run-*")
    return [markers._parse_death(path.name, path.read_bytes()).running for path in found]


def _model(x):
    return (x.sin() @ x.T).relu()


def infer_twice():
    """Whether what the graph calls after its first run is what it would have called without a trial, by its module."""
    from torch._inductor.output_code import CompiledFxGraph

    called = []
    original = CompiledFxGraph.__call__

    def call(self, inputs):
        called.append(self.current_callable.__module__)
        return original(self, inputs)

    CompiledFxGraph.__call__ = call
    infer(times=3)
    return called


def infer_at_once(number):
    """In so many forks of this process; how each ended, and what they have said."""
    children = []
    for _ in range(number):
        read, write = os.pipe()
        pid = os.fork()
        if not pid:
            os._exit(0 if _infer_and_say(write) else 1)
        os.close(write)
        children.append((pid, read))
    ended = [os.waitpid(pid, 0)[1] for pid, _ in children]
    said = []
    for _, read in children:
        with os.fdopen(read) as pipe:
            said += pipe.read().splitlines()
    return {"ended": ended, "said": said}


def infer_late():
    """How processes ended: one whose entry kills it, one that judges that, and one that had looked before that strike."""
    from safecache import crash_guard

    looked, told = os.pipe(), os.pipe()
    late = os.fork()
    if not late:
        crash_guard.open_cache(_root())
        os.write(looked[1], b"1")
        os.read(told[0], 1)
        infer()
        os._exit(0)
    os.read(looked[0], 1)
    ended = infer_at_once(1)["ended"] + infer_at_once(1)["ended"]
    spoil(SEGFAULT)
    os.write(told[1], b"1")
    return [*ended, os.waitpid(late, 0)[1]]


def _infer_and_say(write):
    import logging

    handler = logging.StreamHandler(os.fdopen(write, "w"))
    logging.getLogger("safecache").addHandler(handler)
    return infer()["hits"] in (0, 1)


def train():
    return model_scenes.compile_model()


@contextlib.contextmanager
def spoiling(what):
    """What is saved in this block does this as well, when it is run."""
    from unittest import mock

    from torch._inductor.codecache import PyCodeCache
    from torch._inductor.output_code import CompiledFxGraph

    prepare = CompiledFxGraph.prepare_for_serialization

    def prepare_it(graph):
        prepare(graph)
        graph.source_code = _with(graph.source_code, what, "run")
        graph.cache_key, graph.cache_linemap = PyCodeCache.write(graph.source_code)[0], None

    with mock.patch.object(CompiledFxGraph, "prepare_for_serialization", prepare_it):
        yield


def save_spoiled(save, path, what=""):
    """Have one of artifact_scenes save an artifact, recompiled, which does this as well when it is run."""
    _forget_entries()
    with spoiling(what) if what else contextlib.nullcontext():
        pkgutil.resolve_name(save)(path)
    _forget_entries()


def _forget_entries():
    for folder in ("aotautograd", "fxgraph"):
        shutil.rmtree(os.path.join(_root(), folder), ignore_errors=True)


def package_spoiled(path, what=""):
    """A model packaged by AOTInductor, whose code has this at the beginning of its run."""
    from unittest import mock

    from torch._inductor.codecache import AotCodeCompiler

    from scenes import sink_scenes

    original = AotCodeCompiler.compile

    def compile_it(graph, wrapper_code, *rest, **named):
        head = wrapper_code.index("{", wrapper_code.index("AOTInductorModel::run_impl(")) + 1
        return original(graph, f"{wrapper_code[:head]}\n{what}\n{wrapper_code[head:]}", *rest, **named)

    with mock.patch.object(AotCodeCompiler, "compile", compile_it):
        sink_scenes.package_model(path)


def run_package(path):
    """Load it, and run it twice: what its loader is before and after."""
    import torch

    model = torch._inductor.aoti_load_package(path)
    loaders = [type(model.loader).__name__]
    for _ in range(2):
        torch.testing.assert_close(model(torch.ones(4)), torch.tanh(torch.ones(4)) + 1)
        loaders.append(type(model.loader).__name__)
    return loaders


def run_package_from_file(path):
    import torch

    with open(path, "rb") as file:
        torch._inductor.aoti_load_package(file)(torch.ones(4))


def run_package_by_export(path):
    import torch
    from torch.export.pt2_archive._package import load_pt2

    load_pt2(path).aoti_runners["model"](torch.ones(4))
