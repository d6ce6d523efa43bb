"""Real engines of a server, stock and with safecache, one after the other: what vllm_engines.py and sglang_engines.py share.

    python tests/gpu/vllm_engines.py PHASE[:PAIRS]... [--seconds S] [--base DIR] [--options JSON]
    python tests/gpu/sglang_engines.py PHASE[:PAIRS]... [--seconds S] [--base DIR] [--options JSON]

A JSON line of each start, and of each pair; ``ledger.py`` measures the starts. Phases, of three pairs unless it says how
many, each with caches, HOME and TMPDIR of its own for each of the two:

* ``throughput``: 16 layers; milliseconds a token of one prompt, and tokens a second of 64. Two engines are up, of which one
  works at a time, in turns. Both load the same kernels, which safecache's have tuned alone and stock then reads. It takes
  each of the server's modes; the name of one, as a phase, takes that one alone.
* ``damaged``: one bit is flipped in each file of a kind: stock, safecache, and safecache in strict mode, which is not to
  come up. The server says which kinds there are; vLLM calls the phase ``strict``, too.

safecache is taken from this checkout, and its plugin is declared for the engines that are to have it alone. No network, no
weights: the model is a random one. No pair starts after ``--seconds``; it says how many are left out. ``--options`` are
more arguments of each engine. Nothing else may run on that machine.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import json
import os
import re
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomllib
from clock import COMMON, Clock, start_at

SOURCE = Path(__file__).resolve().parents[2]
WHO = ("stock", "safecache")
SETTINGS = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TVM_FFI_DISABLE_TORCH_C_DLPACK": "1",
}
# Of the environment, these are not for the engines: each gets its own.
OURS = ("FLASHINFER_", "SAFECACHE", "SGLANG_", "SGL_", "TORCHINDUCTOR_", "TRITON_", "VLLM_", "XDG_")

# How the place of a cache is mounted.
DISKS = {
    "read-only": "mount --bind {0} {0}; mount -o remount,bind,ro {0}; ",
    "full disk": "mount -t tmpfs -o size=1m none {0}; head -c 2M /dev/zero > {0}/full || :; ",
}


@dataclass(frozen=True)
class Server:
    """What is a server's own. Its caches are in a directory of its name, beside HOME and TMPDIR."""

    name: str
    # The program that is started for an engine: it calls main().
    file: str
    # An engine of that specification, in this process: it has generate(prompts, length), counted(), and
    # rate(prompts, adapter), the logarithms of the probabilities of each prompt's 16 tokens.
    load: Callable[[dict[str, Any]], Any]
    # Where an arm's caches are, and what else of the environment is its own.
    environment: Callable[[Arm, Run], dict[str, str]]
    settings: dict[str, str]
    # Matches a line that it logs in good order, or that shows progress.
    expected: re.Pattern[str]
    # Options of an engine, by what is measured in throughput.
    modes: dict[str, dict[str, Any]]
    # The mode of the first start of all.
    first: str
    # Patterns of the files that are damaged together.
    faults: dict[str, tuple[str, ...]]
    # What is in the model's configuration in place of what is in a Llama's.
    model: dict[str, Any] = field(default_factory=dict)
    # In the process that loads the model, the function where that begins, and what its start consists of from there on.
    seam: str = ""
    phases: dict[str, str] = field(default_factory=dict)
    # Seconds until an engine is given up.
    patience: float = 240


# In the engine's process, or one that it has started.


def count_kernels():
    """How often Triton has found a kernel in its cache, and has compiled one, from now on."""
    from triton import knobs

    kernels = {"hit": 0, "compiled": 0}

    def listen(*, cache_hit, **_):
        kernels["hit" if cache_hit else "compiled"] += 1

    knobs.compilation.listener = listen
    return kernels


def counted():
    """What torch and safecache have counted of their caches in this process."""
    from torch._dynamo.utils import counters

    found = {
        f"{kind}.{name}": number
        for kind in ("inductor", "aot_autograd")
        for name, number in counters[kind].items()
        if number and ("cache" in name or "bundler" in name)
    }
    safecache = sys.modules.get("safecache")
    return {"torch": found, "safecache": safecache.stats() if safecache else {}}


def watch(server):
    """Have a start's phases be counted in this process, which loads the model, from when it was asked for."""
    clock = Clock(float(os.environ["ENGINE_BEGAN"]), "imports")

    def begin():
        clock.watch(COMMON | server.phases)
        clock.change("other")

    start_at(server.seam, begin)
    return clock


def make_prompts(number):
    return [[3 + (7 * place + step) % 200 for step in range(24)] for place in range(number)]


def take_seconds(engine, prompts, length):
    start = time.perf_counter()
    engine.generate(make_prompts(prompts), length)
    return time.perf_counter() - start


def are_equal(one, other):
    """Whether two engines rate their first tokens alike, all but one at most: two tokens can be as likely."""
    return sum(abs(ours - theirs) > 0.05 for ours, theirs in zip(one, other, strict=True)) <= 1


def measured(engine, gpu):
    """Milliseconds a token of one prompt, and tokens a second of many; of each the median of three."""
    one, many, length = (256, 64, 64) if gpu else (8, 4, 4)
    token = statistics.median(take_seconds(engine, 1, one) / one for _ in range(3))
    rate = statistics.median(many * length / take_seconds(engine, many, length) for _ in range(3))
    return {"ms_per_token": round(1000 * token, 4), "tokens_per_s": round(rate, 1)}


def engine_main(server, text):
    """One engine's life: up, then a round of measurements for each line it is sent."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    spec = json.loads(text)

    def answer(what):
        print(json.dumps(what), file=answers, flush=True)

    os.environ["ENGINE_BEGAN"] = str(spec["began"])
    start = time.perf_counter()
    engine = server.load(spec)
    loaded = time.perf_counter() - start
    rated = [round(each, 3) for of_prompt in engine.rate(make_prompts(4), spec["adapter"]) for each in of_prompt[:2]]
    seconds = {"engine": round(loaded, 2), "up": round(time.time() - spec["began"], 2)}
    answer(seconds | {"rated": rated} | engine.counted())
    for _ in sys.stdin:
        answer(measured(engine, spec["gpu"]))


# In the process that starts them.


class Engine:
    """A process with an engine: it is up once this is made, or has said why not."""

    def __init__(self, run, arm, who, *, options=None, layers=4, adapter=None, disk="", **settings):
        self.arm, self.run = arm, run
        options = (options or {}) | run.options
        spec = {"model": str(run.model(layers)), "gpu": run.gpu, "options": options, "adapter": adapter}
        spec["began"] = time.time()
        command = [*arm.mounts(disk), sys.executable, run.server.file, "--engine", json.dumps(spec)]
        self.log = arm.base / "log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                command,
                env=arm.environment(who, run) | settings,
                cwd=arm.base,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        self.said = self.answer()

    def answer(self):
        """The next thing it says, or nothing if it ends, or takes longer than it may."""
        if not select.select([self.process.stdout], [], [], self.run.server.patience)[0]:
            return {}
        line = self.process.stdout.readline()
        return json.loads(line) if line else {}

    def measure(self):
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()
        return self.answer()

    def end(self, limit=30):
        """Have it exit. What it said, its status, its unexpected lines, and the CPU seconds of it and its children.

        Those are the ones it has said, if it has said any.
        """
        self.process.stdin.close()
        until = time.monotonic() + limit
        while not (ended := os.wait4(self.process.pid, os.WNOHANG))[0] and time.monotonic() < until:
            time.sleep(0.05)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        _, status, usage = ended if ended[0] else os.wait4(self.process.pid, 0)
        self.process.returncode = os.waitstatus_to_exitcode(status)
        self.process.stdout.close()
        expected = self.run.server.expected
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if not expected.search(line)]
        cpu = {"cpu": round(usage.ru_utime + usage.ru_stime, 2)}
        return cpu | self.said | {"exit": self.process.returncode, "lines": lines}


class Arm:
    """A home, caches and a temporary directory."""

    def __init__(self, base, caches):
        self.base, self.caches = base, base / caches
        for name in ("home", "tmp", caches):
            (base / name).mkdir(parents=True)

    def copy(self, name):
        """Another one with the same files, which have the times they had."""
        other = Arm.__new__(Arm)
        other.base = self.base.with_name(name)
        other.caches = other.base / self.caches.name
        shutil.copytree(self.base, other.base, symlinks=True, ignore=special)
        return other

    def environment(self, who, run):
        kept = {name: text for name, text in os.environ.items() if not name.startswith(OURS)}
        path = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
        path = [place for place in map(os.path.abspath, path) if place != str(SOURCE)]
        if who != "stock":
            entry = SOURCE / "safecache" / "bootstrap" / "entry"
            path = [str(run.declared), str(SOURCE), str(entry), *path]
        own = {
            "HOME": str(self.base / "home"),
            "TMPDIR": str(self.base / "tmp"),
            "PYTHONPATH": os.pathsep.join(path),
            "SAFECACHE": "" if who == "stock" else "1",
        }
        return kept | SETTINGS | run.server.settings | own | run.server.environment(self, run)

    def mounts(self, disk):
        """What runs a command for which the caches are on such a ``disk``; its temporary directory is a new one."""
        if disk not in DISKS:
            return []
        shutil.rmtree(self.base / "tmp")
        (self.base / "tmp").mkdir()
        places = [place for place in (self.caches, self.base / "home" / ".triton") if place.exists()]
        mounted = "".join(DISKS[disk].format(place) for place in places)
        return ["unshare", "-m", "sh", "-ec", f'{mounted}exec "$@"', "sh"]


class Run:
    """What all phases share, and what has been found."""

    def __init__(self, server, base, asked):
        self.server, self.base, self.asked, self.pairs = server, base, asked, 0
        self.options = vars(asked).get("options") or {}
        self.until = time.monotonic() + asked.seconds
        self.gpu = has_gpu()
        self.declared = base / "declared"
        declare(self.declared)
        self.stock_lines = set()
        self.warmed, self.right, self.settled = {}, {}, False
        self.names = itertools.count()

    def model(self, layers):
        place = self.base / f"model-{layers}"
        if not place.exists():
            write_model(place, layers, *((512, 8, 32000) if self.gpu else (64, 2, 256)), **self.server.model)
        return place

    def arm(self):
        return Arm(self.base / f"arm-{next(self.names)}", self.server.name)

    def orders(self):
        """For each pair who comes first, in turns, until the time is up."""
        for pair in range(self.pairs):
            if time.monotonic() > self.until:
                say(phase="left out", pairs=self.pairs - pair)
                return
            yield pair, WHO if pair % 2 == 0 else WHO[::-1]

    def start(self, phase, arm, who, **how):
        """One start, said. Of its lines those are shown that stock has not written yet."""
        return self.report(phase, who, Engine(self, arm, who, **how).end())

    def report(self, phase, who, found):
        lines = found.pop("lines")
        if who == "stock":
            self.stock_lines.update(map(alike, lines))
        new = [line[:300] for line in lines if alike(line) not in self.stock_lines]
        words = {"lines": len(lines), "tracebacks": sum("Traceback (most" in line for line in lines)}
        words["new"] = [*new[:8], *([f"... {len(new) - 8} more"] if len(new) > 8 else [])]
        if "up" not in found:
            words["last"] = [line[:300] for line in lines[-12:]]
        say(phase=phase, who=who, **found, **words)
        return found | {"log": lines}

    def ratios(self, phase, found):
        """The median of each pair's ratio, safecache to stock, and each of them."""
        names = ("up", "engine", "cpu", "ms_per_token", "tokens_per_s")
        pairs = [(pair["stock"], pair["safecache"]) for pair in found if len(pair) == 2]
        for name in names:
            each = [ours[name] / theirs[name] for theirs, ours in pairs if theirs.get(name) and ours.get(name)]
            if each:
                say(ratio=phase, of=name, median=round(statistics.median(each), 4), each=[round(x, 3) for x in each])


def warmed(run):
    """The two, each with the caches of a cold start and a warm one, which makes what a start without a compile needs."""
    if not run.warmed:
        run.warmed = {who: run.arm() for who in WHO}
        for who, arm in run.warmed.items():
            run.start("fill", arm, who)
    if not run.settled:
        for who, arm in run.warmed.items():
            run.right[who] = run.start("settle", arm, who).get("rated")
        run.settled = True
    return run.warmed


def throughput(run, modes=None):
    for mode in modes or run.server.modes:
        options = run.server.modes[mode] if run.gpu or mode == "eager" else {}
        ours = run.arm()
        if mode != "eager":
            run.start(f"{mode} fill", ours, "safecache", options=options, layers=16)
        arms = {"safecache": ours, "stock": ours.copy(f"{ours.base.name}-stock")}
        engines = {who: Engine(run, arm, who, options=options, layers=16) for who, arm in arms.items()}
        found = []
        if all(engine.said for engine in engines.values()):
            for engine in engines.values():
                engine.measure()
            for _, order in run.orders():
                found.append({who: engines[who].measure() for who in order})
                say(phase=mode, **found[-1])
        for who in WHO:
            run.report(mode, who, engines[who].end())
        run.ratios(mode, found)


def damaged(run):
    arms = warmed(run)
    cases = [("stock", "stock", {}), ("default", "safecache", {}), ("strict", "safecache", {"SAFECACHE_STRICT": "1"})]
    for fault, patterns in run.server.faults.items():
        for name, who, settings in cases:
            arm = arms[who].copy(f"damaged-{fault}-{name}")
            files = {path for pattern in patterns for path in arm.base.rglob(pattern) if path.is_file()}
            if not files:
                say(phase="left out", fault=fault, case=name, files=0)
                continue
            for path in files:
                damage(path)
            found = run.start(f"damaged {fault}, {name}", arm, who, **settings)
            refusal = [line[:300] for line in found["log"] if "Error: safecache: " in line]
            said = {"up": "up" in found, "exit": found["exit"], "refusal": refusal[-1:]}
            same = {"equal": are_equal(found["rated"], run.right[who])} if "up" in found else {}
            say(phase="damaged", fault=fault, files=len(files), case=name, **said, **same)
            shutil.rmtree(arm.base)


PHASES = {"throughput": throughput, "damaged": damaged}


def has_gpu():
    return any(Path("/dev").glob("nvidia[0-9]*"))


def special(place, names):
    """Of these those that are neither files nor directories, such as sockets."""
    paths = ((name, Path(place, name)) for name in names)
    return [name for name, path in paths if not (path.is_symlink() or path.is_file() or path.is_dir())]


def damage(path):
    if path.is_file():
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)


def alike(line):
    """A line without what differs from one start to the next."""
    return re.sub(r"[0-9a-f]{8,}|\d+|arm-\S*", "#", line)


def say(**found):
    print(json.dumps(found, separators=(",", ":")), flush=True)


def declare(place):
    """Have the plugins of this checkout be found by who has that directory on its path."""
    project = tomllib.loads((SOURCE / "pyproject.toml").read_text())["project"]
    metadata = place / f"safecache-{project['version']}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: safecache\nVersion: {project['version']}\n")
    sections = [
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in entries.items())
        for group, entries in project["entry-points"].items()
    ]
    (metadata / "entry_points.txt").write_text("\n".join(sections))


def write_model(place, layers, width, heads, words, **other):
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "hidden_act": "silu",
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "max_position_embeddings": 2048,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": heads,
        "rms_norm_eps": 1e-5,
        "vocab_size": words,
    }
    config |= other
    place.mkdir()
    (place / "config.json").write_text(json.dumps(config))
    # A server has to make up those that are quantized.
    if "quantization_config" not in config:
        sys.path.append(str(SOURCE / "tests" / "faults"))
        import random_llama

        random_llama.write_weights(place)


def has_weights(place):
    return Path(place, "model.safetensors").exists()


def arguments(server, description):
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    known = ", ".join([*PHASES, *server.modes])
    parser.add_argument("phases", nargs="+", metavar="PHASE[:PAIRS]", help=known)
    parser.add_argument("--seconds", type=float, default=500)
    parser.add_argument("--base", type=Path)
    parser.add_argument("--options", type=json.loads, metavar="JSON", help="more arguments of each engine")
    return parser


def main(server, parser):
    if sys.argv[1:2] == ["--engine"]:
        engine_main(server, sys.argv[2])
        return
    asked = parser.parse_args()
    modes = {mode: functools.partial(throughput, modes=[mode]) for mode in server.modes}
    phases = PHASES | {"strict": damaged} | modes
    plan = [(name, int(pairs or 3)) for name, _, pairs in (text.partition(":") for text in asked.phases)]
    if unknown := [name for name, _ in plan if name not in phases]:
        parser.error(f"no such phase: {', '.join(unknown)}")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f"{server.name}-engines-", dir=asked.base) as base:
        run = Run(server, Path(base), asked)
        # The first start of all reads libraries from the disk, and Python compiles what it imports.
        if "up" not in run.start("first", run.arm(), "stock", options=server.modes[server.first]):
            raise SystemExit(f"stock {server.name} does not come up here")
        for name, pairs in plan:
            run.pairs = pairs
            phases[name](run)
            say(done=name, seconds=round(time.monotonic() - began))
