"""Processes that tune a kernel at once in one empty cache, stock and with safecache in turns: a JSON line of each time.

    python tests/single_flight/tune_at_once.py [--processes 8] [--configs 20] [--pairs 1] [--longer SECONDS]

Each compiles the kernel's configurations, to cubins; it needs no GPU. A line has the seconds from the moment when all
have imported torch until the last is done, their CPU seconds in that time with ptxas, and how many each has compiled. With
``safecache, in order`` all go through them in torch's order. ``--longer``: each compile sleeps so long besides, as if it
were that of a large kernel and there were a core for each process.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

TESTS = Path(__file__).resolve().parents[1]
WHO = ("stock", "safecache, in order", "safecache")
_WARPS = (1, 2, 4, 8)


def tune(who: str, configs: int, longer: float) -> None:
    """What each process does; prints a line once it is ready, and one of what it took."""
    if who != "stock":
        importlib.import_module("safecache")
    from scenes import autotuners
    from triton.compiler import ASTSource

    if who == "safecache, in order":
        from safecache.single_flight import tuning

        tuning.share_configurations = lambda *_: contextlib.nullcontext()
    compiled, parse = [], ASTSource.make_ir

    def make_ir(*rest, **named):
        compiled.append(1)
        time.sleep(longer)
        return parse(*rest, **named)

    with autotuners.driver(), mock.patch.object(ASTSource, "make_ir", make_ir):
        tuner = autotuners.autotuner(configs=[{"XBLOCK": 32 << number // 4} for number in range(configs)])
        for number, config in enumerate(tuner.configs):
            config.num_warps = _WARPS[number % 4]
        print("ready", flush=True)
        input()
        before = sum(os.times()[:4])
        tuner._precompile_worker()
        print(json.dumps({"cpu": sum(os.times()[:4]) - before, "compiled": len(compiled)}))


def start(who: str, arguments: argparse.Namespace) -> dict:
    """The line of ``who``, with caches and keys of its own."""
    with tempfile.TemporaryDirectory() as home:
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("SAFECACHE", "TRITON_"))}
        environment |= {
            "HOME": home,
            "TMPDIR": home,
            "XDG_CONFIG_HOME": f"{home}/config",
            "TRITON_CACHE_DIR": f"{home}/triton",
            "TORCHINDUCTOR_CACHE_DIR": f"{home}/cache",
            "PYTHONWARNINGS": "ignore",
            "PYTHONPATH": f"{TESTS.parent}{os.pathsep}{TESTS}",
        }
        command = [sys.executable, __file__, "--who", who, f"--configs={arguments.configs}"]
        command += [f"--longer={arguments.longer}"]
        running = [
            subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(arguments.processes)
        ]
        for process in running:
            process.stdout.readline()
        began = time.perf_counter()
        for process in running:
            process.stdin.write("\n")
            process.stdin.flush()
        answers = [json.loads(process.communicate()[0]) for process in running]
        return {
            "who": who,
            "seconds": round(time.perf_counter() - began, 2),
            "cpu": round(sum(answer["cpu"] for answer in answers), 2),
            "compiled": sorted(answer["compiled"] for answer in answers),
        }


def main() -> None:
    """All lines."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--configs", type=int, default=20)
    parser.add_argument("--pairs", type=int, default=1)
    parser.add_argument("--longer", type=float, default=0.0)
    parser.add_argument("--who", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.who:
        return tune(arguments.who, arguments.configs, arguments.longer)
    for _, who in itertools.product(range(arguments.pairs), WHO):
        print(json.dumps(start(who, arguments)), flush=True)


if __name__ == "__main__":
    main()
