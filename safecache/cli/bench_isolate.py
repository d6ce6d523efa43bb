"""``safecache bench isolate``: what compiling kernels apart costs, against the other ways of doing it, in one run."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from safecache.cli import workload

__all__ = ["show"]

_ISOLATED = {"SAFECACHE_ISOLATE": "1"}
_STOCK = {"SAFECACHE": "0"}


class Way(NamedTuple):
    """A way of compiling: what compiles.py does, with which settings, and the way that it is compared with."""

    what: str
    title: str
    settings: dict[str, str]
    base: str = "serial"
    survives: bool = False


_WAYS = {
    "serial": Way("serial", "in this process", _STOCK),
    "threads": Way("threads", "in two threads of it", _STOCK),
    "fork": Way("fork", "a fork for each", _STOCK, survives=True),
    "spawn": Way("spawn", "an interpreter for each", _STOCK, survives=True),
    "pool": Way("pool", "two interpreters", _STOCK),
    "service": Way("service", "safecache's service, two at once", _ISOLATED, survives=True),
    "tune": Way("tune", "@triton.autotune, in this process", _STOCK, "tune"),
    "tune apart": Way("tune", "@triton.autotune, one by one", _ISOLATED | {"SAFECACHE_PREFETCH": "0"}, "tune"),
    "tune ahead": Way("tune", "@triton.autotune, compiled ahead", _ISOLATED, "tune"),
}


def show(*, rounds: int, as_json: bool) -> int:
    """Measure, print a table or JSON, and return 0."""
    cases = [
        (name, crashing) for crashing in (False, True) for name, way in _WAYS.items() if way.survives or not crashing
    ]
    found: dict[tuple[str, bool], list[dict[str, float]]] = {case: [] for case in cases}
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=rounds * len(cases))
        for number in range(rounds):
            # The order alternates: who comes second finds the machine as the first has left it.
            for case in cases if number % 2 else reversed(cases):
                progress.update(task, description=f"{case[0]}{', with crashes' if case[1] else ''}")
                found[case].append(_run(*case))
                progress.advance(task)
    figures = [_figure(way, crashing, found) for way, crashing in cases]
    if as_json:
        print(json.dumps({"triton": metadata.version("triton"), "rounds": rounds, "figures": figures}))
    else:
        _print(figures)
    return 0


def _run(way: str, crashing: bool) -> dict[str, float]:
    """One run, with a cold cache. Raises OSError if it fails."""
    script = Path(workload.__file__).with_name("compiles.py")
    with tempfile.TemporaryDirectory(prefix="safecache-bench-") as base:
        environment = workload.environment_with_safecache() | workload.places(Path(base) / "caches")
        environment |= _WAYS[way].settings
        command = [sys.executable, str(script), _WAYS[way].what, *(["crashing"] if crashing else [])]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{way} failed: {done.stderr[-2000:]}")
    answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _figure(way: str, crashing: bool, found: dict[tuple[str, bool], list[dict[str, float]]]) -> dict[str, object]:
    figure: dict[str, object] = {"way": _WAYS[way].title, "crashing": crashing, "jobs": found[way, crashing][0]["jobs"]}
    for what in ("wall", "cpu"):
        own, base = ([run[what] for run in found[case]] for case in ((way, crashing), (_WAYS[way].base, False)))
        figure[what] = statistics.median(own)
        figure[f"{what}_ratio"] = statistics.median(a / b for a, b in zip(own, base, strict=True))
    return figure


def _print(figures: list[dict[str, object]]) -> None:
    titles = ("kernels compiled", "crashes", "wall s", "ratio", "CPU s", "ratio")
    table = Table(*titles, title=f"triton {metadata.version('triton')}")
    for figure in figures:
        times = (f"{figure[what]:.3f}" for what in ("wall", "wall_ratio", "cpu", "cpu_ratio"))
        table.add_row(str(figure["way"]), "10 %" if figure["crashing"] else "", *times)
    Console().print(table)
