"""Processes that start together with one empty cache, stock and with safecache in turns: a JSON line of each start.

    python tests/gpu/cold_at_once.py [--processes 1 8] [--pairs N] [--layers N] [--inference]

Each process compiles the same encoder, by default with its backward, and runs one step. Then they start again, warm: what
that takes, no cache saves. A line has the seconds until the last one is done, the CPU seconds of all of them with their
children, how many compiled the AOTAutograd entry, how many different losses they came to (one), and what safecache counts.
Runs on a GPU where there is one, else on the CPU; on an H200 with 16 cores a pair of 8 processes takes about 75 s. Nothing
else may run on that machine.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
WHO = ("stock", "safecache")
STARTS = ("cold", "warm")
PR_SET_CHILD_SUBREAPER = 36


def step(layers: int, *, backward: bool) -> None:
    """What each process does: one step, and a JSON line of it."""
    if os.environ["WHO"] == "safecache":
        import safecache
    import torch
    from torch._dynamo.utils import counters

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True, norm_first=True)
    model = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).to(device).train(backward)
    inputs = torch.randn(2, 16, 64).to(device)
    with contextlib.nullcontext() if backward else torch.no_grad():
        loss = torch.compile(model)(inputs).square().mean()
    if backward:
        loss.backward()
        loss = loss + sum(parameter.grad.square().mean() for parameter in model.parameters())
    answer = {"loss": loss.item(), "compiled": counters["aot_autograd"]["autograd_cache_miss"]}
    if os.environ["WHO"] == "safecache":
        counts = safecache.stats()
        answer["counts"] = {what: n for what, n in counts.items() if n and ("wait" in what or "another" in what)}
    print(json.dumps(answer))


def start_both(who: str, processes: int, arguments: argparse.Namespace) -> list[dict]:
    """The lines of two starts with caches and keys of their own: cold and warm."""
    with tempfile.TemporaryDirectory() as home:
        return [{"start": name} | start(who, home, processes, arguments) for name in STARTS]


def start(who: str, home: str, processes: int, arguments: argparse.Namespace) -> dict:
    """The line of one start: ``processes`` at once, with the caches and keys in ``home``."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("SAFECACHE", "TORCHINDUCTOR_"))}
    environment |= {
        "HOME": home,
        "TMPDIR": home,
        "XDG_CONFIG_HOME": f"{home}/config",
        "TORCHINDUCTOR_CACHE_DIR": f"{home}/cache",
        "PYTHONPATH": f"{SOURCE}{os.pathsep}{environment.get('PYTHONPATH', '')}",
        "OMP_NUM_THREADS": "1",
        "WHO": who,
    }
    command = [sys.executable, __file__, "--step", "--layers", str(arguments.layers)]
    command += ["--inference"] * arguments.inference
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    running = [
        subprocess.Popen(command, env=environment, cwd=home, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(processes)
    ]
    outputs = [process.communicate() for process in running]
    seconds = time.perf_counter() - began
    with contextlib.suppress(ChildProcessError):  # compile workers that outlive their process, for their CPU time
        while True:
            os.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    failed = [error for process, (_, error) in zip(running, outputs, strict=True) if process.returncode]
    if failed:
        sys.exit(failed[0])
    answers = [json.loads(output.splitlines()[-1]) for output, _ in outputs]
    counts: dict[str, float] = {}
    for what, n in itertools.chain.from_iterable(answer.get("counts", {}).items() for answer in answers):
        counts[what] = round(counts.get(what, 0) + n, 2)
    return {
        "who": who,
        "processes": processes,
        "seconds": round(seconds, 2),
        "cpu": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
        "compiled": sum(answer["compiled"] for answer in answers),
        "losses": len({answer["loss"] for answer in answers}),
        "loss": answers[0]["loss"],
        "counts": counts,
        "lines": sorted({line for _, error in outputs for line in error.splitlines()})[:5],
    }


def main() -> None:
    """Starts in pairs, and the median ratios of them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--pairs", type=int, default=1)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--inference", action="store_true")
    parser.add_argument("--step", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step:
        return step(arguments.layers, backward=not arguments.inference)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    for processes in arguments.processes:
        pairs = []
        for _ in range(arguments.pairs):
            pairs.append([start_both(who, processes, arguments) for who in WHO])
            for line in itertools.chain(*pairs[-1]):
                print(json.dumps(line), flush=True)
        for number, name in enumerate(STARTS):
            for what in ("seconds", "cpu"):
                ratios = [ours[number][what] / theirs[number][what] for theirs, ours in pairs]
                line = {"start": name, "processes": processes, what: [round(ratio, 3) for ratio in ratios]}
                print(json.dumps(line | {"median": round(statistics.median(ratios), 3)}), flush=True)


if __name__ == "__main__":
    main()
