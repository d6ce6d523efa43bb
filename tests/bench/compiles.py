"""Compiles the kernels in one of several ways, as autotuners do or could: ``compiles.py WAY [crashing]``. Prints JSON.

safecache isolates compiles if the environment says so, and otherwise does nothing. The figures are wall and CPU seconds
of all processes, from the end of the imports of Triton and torch until each kernel is in this process.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import json
import multiprocessing
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import kernels
from kernels import Job

# How many compile at once.
_WIDTH = 2


def _serial(jobs: list[Job]) -> None:
    for job in jobs:
        kernels.compile(job)


def _threads(jobs: list[Job]) -> None:
    with ThreadPoolExecutor(_WIDTH) as threads:
        list(threads.map(kernels.compile, jobs))


def _fork(jobs: list[Job]) -> None:
    """A process for each, forked from this one after it has compiled once, as Helion does."""
    running: dict[int, Job] = {}
    left = list(jobs)
    while left or running:
        while left and len(running) < _WIDTH:
            job = left.pop(0)
            pid = os.fork()
            if pid == 0:
                kernels.compile(job)
                os._exit(0)
            running[pid] = job
        pid, status = os.wait()
        if status == 0:
            kernels.compile(running[pid])
        del running[pid]


def _spawn(jobs: list[Job], crashing: bool) -> None:
    """A new interpreter for each."""

    def compile(number: int) -> None:
        done = subprocess.run([sys.executable, __file__, str(number), *(["crashing"] if crashing else [])])
        if done.returncode == 0:
            kernels.compile(jobs[number])

    with ThreadPoolExecutor(_WIDTH) as threads:
        list(threads.map(compile, range(len(jobs))))


def _compile_number(number: int) -> None:
    kernels.compile(kernels.jobs(crashing=False)[number])


def _pool(jobs: list[Job]) -> None:
    """A pool of interpreters that compile one kernel after another; a crash of one breaks the pool."""
    with ProcessPoolExecutor(_WIDTH, mp_context=multiprocessing.get_context("spawn")) as pool:
        for number, _ in enumerate(pool.map(_compile_number, range(len(jobs)))):
            kernels.compile(jobs[number])


def _service(jobs: list[Job]) -> None:
    from safecache.errors import TritonCompileCrash

    def compile(job: Job) -> None:
        with contextlib.suppress(TritonCompileCrash):
            kernels.compile(job)

    with ThreadPoolExecutor(_WIDTH) as threads:
        list(threads.map(compile, jobs))
    _end_service()


def _end_service() -> None:
    """Close the compile service, if there is one, so that its CPU time is counted."""
    client = sys.modules.get("safecache.isolation.client")
    if client is not None:
        client.current().close()


_WAYS: dict[str, Callable[[list[Job]], None]] = {
    "serial": _serial,
    "few": _serial,
    "threads": _threads,
    "fork": _fork,
    "pool": _pool,
    "service": _service,
}


def _cpu_seconds() -> float:
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def main() -> None:
    """Do as the command line says."""
    way, crashing = sys.argv[1], sys.argv[2:] == ["crashing"]
    jobs = kernels.few() if way == "few" else kernels.jobs(crashing=crashing)
    if way.isdigit():
        kernels.compile(jobs[int(way)])
        return
    if importlib.util.find_spec("torch") is not None:
        importlib.import_module("torch")
    if way in ("fork", "few"):
        # Initialises LLVM in this process, rather than in each child, or in what is measured.
        kernels.compile(jobs[-1]._replace(options={"num_warps": 2}))
    gc.freeze()  # a full collection of what torch has imported takes as long as a kernel, and comes at any of them
    before, start = _cpu_seconds(), time.perf_counter()
    number = len(jobs)
    if way == "spawn":
        _spawn(jobs, crashing)
    elif way == "tune":
        number = kernels.tune()
        _end_service()
    else:
        _WAYS[way](jobs)
    wall = time.perf_counter() - start
    print(json.dumps({"wall": wall, "cpu": _cpu_seconds() - before, "jobs": number}))


if __name__ == "__main__":
    main()
