"""``safecache bench``: what safecache costs, against stock torch in the same run."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from safecache.cli import bench_isolate, workload
from safecache.cli.arguments import add_json, number
from safecache.cli.workload import Cache
from safecache.signing import key_changes, key_files, signatures
from safecache.signing.provenance import torch_version

__all__ = ["add", "run"]


class Figure(NamedTuple):
    """Medians in ``unit``, and the median of the ratios pair by pair; ``stock`` None: there is nothing to compare."""

    what: str
    unit: str
    stock: float | None
    safecache: float
    ratio: float | None


_IMPORT = "import time; start = time.perf_counter(); import safecache; print((time.perf_counter() - start) * 1e3)"


def add(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    parser.add_argument(
        "what", nargs="?", choices=["isolate"], help="isolate: compiling kernels in processes of their own, instead"
    )
    parser.add_argument("--pairs", type=number, default=7, metavar="N", help="pairs of runs a figure (default 7)")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Measure, and print the figures. Raises SafecacheError or OSError."""
    if arguments.what == "isolate":
        return bench_isolate.show(rounds=arguments.pairs, as_json=arguments.json)
    return _show(pairs=arguments.pairs, as_json=arguments.json)


def _show(*, pairs: int, as_json: bool) -> int:
    """Measure, print a table or JSON, and return 0."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with (
        tempfile.TemporaryDirectory(prefix="safecache-bench-") as name,
        Progress(*columns, console=Console(stderr=True), transient=True) as progress,
    ):
        task = progress.add_task("", total=6 * pairs + 7)

        def step(what: str) -> None:
            progress.update(task, description=what)
            progress.advance(task)

        base = Path(name)
        figures = [
            *_imports(pairs, step),
            *_entries(base, step),
            *_launches(base, step),
            *_build_keys(base, step),
            *_warm_starts(base, pairs, step),
        ]
    if as_json:
        print(json.dumps({"torch": torch_version(), "pairs": pairs, "figures": [f._asdict() for f in figures]}))
    else:
        _print(figures)
    return 0


def _imports(pairs: int, step: Callable[[str], None]) -> Iterator[Figure]:
    environment = workload.environment_with_safecache()
    for what, before in (("import safecache", ""), ("import safecache on top of torch", "import torch; ")):
        times: list[float] = []
        for _ in range(pairs if before else 2 * pairs):
            if before or len(times) % 2:
                step(what)
            command = [sys.executable, "-c", before + _IMPORT]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            times.append(float(done.stdout))
        yield Figure(what, "ms", None, statistics.median(times), None)


def _answer_of(script: str, base: Path) -> dict[str, dict[str, float]]:
    command = [sys.executable, str(Path(workload.__file__).with_name(script))]
    environment = workload.environment_with_safecache() | workload.places(base / script)
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{script} failed: {done.stderr[-2000:]}")
    answer: dict[str, dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _launches(base: Path, step: Callable[[str], None]) -> Iterator[Figure]:
    step("launches")
    for what, times in _answer_of("launches.py", base).items():
        yield Figure(f"launch: {what}", "us", times["stock"] / 1e3, times["ours"] / 1e3, times["ratio"])


def _build_keys(base: Path, step: Callable[[str], None]) -> Iterator[Figure]:
    for what in ("the first process", "another"):
        step(f"keys of torch and Triton, {what}")
        answer = _answer_of("build_keys.py", base)
    for name, times in answer.items():
        yield Figure(name, "ms", times["stock"] * 1e3, times["ours"] * 1e3, times["ours"] / times["stock"])


def _entries(base: Path, step: Callable[[str], None]) -> Iterator[Figure]:
    step("save and read")
    for size, times in _answer_of("microbench.py", base).items():
        label = f"{int(size) // 1000} kB"
        for what in ("save", "read"):
            stock, ours = times[f"stock {what}"], times[what]
            yield Figure(f"{what} {label}", "ms", stock, ours, ours / stock)
        yield Figure(f"save {label}, synced", "ms", None, times["synced save"], None)
        yield Figure(f"verify {label}", "ms", None, times["verify"], None)


def _warm_starts(base: Path, pairs: int, step: Callable[[str], None]) -> Iterator[Figure]:
    stock, *ours = caches = (
        Cache(base / "stock", stock=True),
        Cache(base / "safecache", stock=False),
        Cache(base / "everything-on", stock=False, settings=_everything(base)),
    )
    for cache in caches:
        step(f"cold compile, {cache.base.name}")
        cache.directory.mkdir(parents=True)
        cache.run()
    answers: dict[Cache, list[dict[str, float]]] = {cache: [] for cache in caches}
    for pair in range(pairs):
        # The order alternates: who comes second finds the machine as the first has left it.
        for cache in caches if pair % 2 else reversed(caches):
            step(f"warm start {pair + 1} of {pairs}, {cache.base.name}")
            outcome = cache.run()
            if outcome.error or not outcome.hit:
                raise OSError(f"a warm start did not hit: {outcome.answer} {outcome.stderr[-500:]}")
            answers[cache].append(outcome.answer)
    for cache in ours:
        note = ", everything on" if cache.settings else ""
        for what, name in (("warm start: first step", "seconds"), ("warm start: CPU of the first step", "cpu_seconds")):
            theirs, own = ([answer[name] for answer in answers[each]] for each in (stock, cache))
            ratio = statistics.median(b / a for a, b in zip(theirs, own, strict=True))
            yield Figure(what + note, "s", statistics.median(theirs), statistics.median(own), ratio)


def _everything(base: Path) -> dict[str, str]:
    """The settings that cost: signatures where the library for them is installed, and copies of libraries."""
    chosen = {"SAFECACHE_STRICT": "1", "SAFECACHE_NAMESPACE": "bench", "SAFECACHE_EXEC_DIR": str(base / "exec")}
    os.mkdir(chosen["SAFECACHE_EXEC_DIR"], 0o700)
    if signatures.problem() is not None:
        return chosen
    path = str(base / "farm.json")
    key_files.save(path, key_changes.generate(ed25519=True))
    return chosen | {"SAFECACHE_KEY_FILE": path}


def _print(figures: list[Figure]) -> None:
    table = Table("figure", "unit", "stock torch", "with safecache", "ratio", title=f"torch {torch_version()}")
    for figure in figures:
        stock = "" if figure.stock is None else f"{figure.stock:.3f}"
        ratio = "" if figure.ratio is None else f"{figure.ratio:.3f}"
        table.add_row(figure.what, figure.unit, stock, f"{figure.safecache:.3f}", ratio)
    Console().print(table)
