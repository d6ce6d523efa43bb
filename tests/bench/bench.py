"""Measure what safecache costs against stock torch, in pairs in one run: ``python tests/bench/bench.py --help``.

``bench.py isolate``: what isolated compiles cost; ``bench.py remote``: how a second host starts that shares a remote
cache, and ``bench.py pack``: how one starts that has a pack of the first one's.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from safecache.cli import demo
from safecache.cli.demo import Cache
from safecache.cli.view import add_json, number
from safecache.remote import extras
from safecache.settings import children, config
from safecache.settings.settings import PACK
from safecache.signing import key_changes, key_files, keys
from safecache.signing.provenance import torch_version


class Figure(NamedTuple):
    """Medians in ``unit``, and the median of the ratios of each pair; ``stock`` is None without a counterpart."""

    what: str
    unit: str
    stock: float | None
    safecache: float
    ratio: float | None


_IMPORT = "import time; start = time.perf_counter(); import safecache; print((time.perf_counter() - start) * 1e3)"


_SCRIPTS = Path(__file__).parent


def main() -> int:
    """Measure, and print the figures. Raises SafecacheError or OSError."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "what",
        nargs="?",
        choices=["isolate", "pack", "remote"],
        help="instead, isolate: compiling kernels in processes of their own; pack, remote: the start of a second host",
    )
    parser.add_argument(
        "--remote", metavar="URL", help="the remote of the second host; by default a directory, which needs obstore"
    )
    parser.add_argument("--device", default="cpu", help="where the hosts compute, such as cuda; by default the CPU")
    parser.add_argument("--pairs", type=number, default=7, metavar="N", help="pairs of runs a figure (default 7)")
    add_json(parser)
    arguments = parser.parse_args()
    if arguments.what == "isolate":
        return show(rounds=arguments.pairs, as_json=arguments.json)
    if arguments.what == "pack":
        return _show_packed_host(arguments.device, pairs=arguments.pairs, as_json=arguments.json)
    if arguments.what == "remote":
        return _show_second_host(arguments.remote, arguments.device, pairs=arguments.pairs, as_json=arguments.json)
    return _show(pairs=arguments.pairs, as_json=arguments.json)


def _show(*, pairs: int, as_json: bool) -> int:
    """Measure, print a table or JSON, and return 0."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with (
        tempfile.TemporaryDirectory(prefix="safecache-bench-") as name,
        Progress(*columns, console=Console(stderr=True), transient=True) as progress,
    ):
        task = progress.add_task("", total=8 * pairs + 7)

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
            *_cold_kernels(pairs, step),
        ]
    return _told(figures, pairs, as_json=as_json)


def _told(figures: list[Figure], pairs: int, *, as_json: bool) -> int:
    if as_json:
        print(json.dumps({"torch": torch_version(), "pairs": pairs, "figures": [f._asdict() for f in figures]}))
    else:
        _print(figures)
    return 0


def _show_second_host(url: str | None, device: str, *, pairs: int, as_json: bool) -> int:
    """Measure the starts of two hosts that share a remote, print a table or JSON, and return 0. Raises OSError."""
    times: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="safecache-bench-") as name:
        os.mkdir(os.path.join(name, "remote"))
        remote = url or f"file://{name}/remote"
        lacking = extras.find_missing(remote)
        if lacking is not None:
            raise OSError(f"{lacking[0]} is not installed: {lacking[1]}")
        for pair in range(pairs):
            # A namespace of its own: each pair begins with a remote that has nothing for it.
            shared = {"SAFECACHE_REMOTE": remote, "SAFECACHE_NAMESPACE": f"bench-{os.getpid()}-{pair}"}
            for what, seconds in _starts(Path(name) / str(pair), device, shared):
                times.setdefault(what, []).append(seconds)
    return _told(list(_of_second_host(times)), pairs, as_json=as_json)


def _starts(base: Path, device: str, shared: dict[str, str]) -> Iterator[tuple[str, float]]:
    """The seconds of the first step of stock torch, of a host, and of another with its keys alone, cold and warm."""
    stock, first = Cache(base / "stock", stock=True), Cache(base / "first", stock=False, settings=shared)
    for cache, who in ((stock, "stock"), (first, "first")):
        cache.directory.mkdir(parents=True)
        for how in ("cold", "warm"):
            yield f"{who} {how}", _first_step(cache, device, hits=how == "warm")
    second = Cache(base / "second", stock=False, settings=shared)
    second.directory.mkdir(parents=True)
    shutil.copytree(first.base / "config", second.base / "config")
    yield "second", _first_step(second, device, hits=True)


def _show_packed_host(device: str, *, pairs: int, as_json: bool) -> int:
    """Measure the starts of a host that has a pack of another's caches, as _show_second_host()."""
    if not config.is_installed("zstandard"):
        raise OSError(f"zstandard is not installed: {config.install_line('pack')}")
    times: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="safecache-bench-") as name:
        for pair in range(pairs):
            for what, seconds in _packed_starts(Path(name) / str(pair), device):
                times.setdefault(what, []).append(seconds)
    return _told(list(_of_packed_host(times)), pairs, as_json=as_json)


def _packed_starts(base: Path, device: str) -> Iterator[tuple[str, float]]:
    first, pack = Cache(base / "first", stock=False), base / f"bench{PACK}"
    first.directory.mkdir(parents=True)
    yield "cold", _first_step(first, device, hits=False)
    yield "warm", _first_step(first, device, hits=True)
    _command(first, "pack", "-o", str(pack))
    for who, settings in (("below", {"SAFECACHE_LOWER": str(pack)}), ("unpacked", {})):
        other = Cache(base / who, stock=False, settings=settings)
        other.directory.mkdir(parents=True)
        shutil.copytree(first.base / "config", other.base / "config")
        if not settings:
            _command(other, "unpack", str(pack))
        yield who, _first_step(other, device, hits=True)


def _command(cache: Cache, *words: str) -> None:
    """Run a command of ours on its caches. Raises OSError if it fails."""
    environment = demo.make_environment() | demo.make_variables(cache.base)
    command = [sys.executable, "-m", "safecache", *words]
    done = subprocess.run(command, **children.make_options(environment), capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"safecache {words[0]} failed: {done.stdout[-500:]} {done.stderr[-500:]}")


def _of_packed_host(times: dict[str, list[float]]) -> Iterator[Figure]:
    for what, name in (
        ("cold start", "cold"),
        ("warm start, from a cache of its own", "warm"),
        ("other host, with a pack below an empty cache", "below"),
        ("other host, with the pack unpacked", "unpacked"),
    ):
        ratio = statistics.median(b / a for a, b in zip(times["warm"], times[name], strict=True))
        yield Figure(what, "s", None, statistics.median(times[name]), ratio)


def _first_step(cache: Cache, device: str, *, hits: bool) -> float:
    outcome = cache.run("--device", device)
    if outcome.error or outcome.is_hit != hits:
        raise OSError(
            f"{cache.base.name} has {'no hit' if hits else 'a hit'}: {outcome.answer} {outcome.stderr[-500:]}"
        )
    return float(outcome.answer["seconds"])


def _of_second_host(times: dict[str, list[float]]) -> Iterator[Figure]:
    for what, theirs, own in (
        ("cold start; here it is sent too", "stock cold", "first cold"),
        ("warm start, from a cache of its own", "stock warm", "first warm"),
        ("second host, from the remote; stock cold", "stock cold", "second"),
    ):
        ratio = statistics.median(b / a for a, b in zip(times[theirs], times[own], strict=True))
        yield Figure(what, "s", statistics.median(times[theirs]), statistics.median(times[own]), ratio)
    ratios = [b / a for a, b in zip(times["first warm"], times["second"], strict=True)]
    yield Figure("second host / warm start with safecache", "", None, statistics.median(ratios), None)


def _imports(pairs: int, step: Callable[[str], None]) -> Iterator[Figure]:
    environment = demo.make_environment()
    for what, before in (("import safecache", ""), ("import safecache on top of torch", "import torch; ")):
        times: list[float] = []
        for _ in range(pairs if before else 2 * pairs):
            if before or len(times) % 2:
                step(what)
            command = [sys.executable, "-c", before + _IMPORT]
            done = subprocess.run(
                command, **children.make_options(environment), capture_output=True, text=True, check=True
            )
            times.append(float(done.stdout))
        yield Figure(what, "ms", None, statistics.median(times), None)


def _answer_of(script: str, base: Path) -> dict[str, dict[str, float]]:
    command = [sys.executable, str(_SCRIPTS / script)]
    environment = demo.make_environment() | demo.make_variables(base / script)
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
        # The order alternates, since the first affects the state of the machine for the second.
        for cache in caches if pair % 2 else reversed(caches):
            step(f"warm start {pair + 1} of {pairs}, {cache.base.name}")
            outcome = cache.run()
            if outcome.error or not outcome.is_hit:
                raise OSError(f"a warm start did not hit: {outcome.answer} {outcome.stderr[-500:]}")
            answers[cache].append(outcome.answer)
    for cache in ours:
        note = ", everything on" if cache.settings else ""
        for what, name in (("warm start: first step", "seconds"), ("warm start: CPU of the first step", "cpu_seconds")):
            theirs, own = ([answer[name] for answer in answers[each]] for each in (stock, cache))
            ratio = statistics.median(b / a for a, b in zip(theirs, own, strict=True))
            yield Figure(what + note, "s", statistics.median(theirs), statistics.median(own), ratio)


def _cold_kernels(pairs: int, step: Callable[[str], None]) -> Iterator[Figure]:
    """What compiling Triton kernels costs in a cold cache, files and records included."""
    times: dict[str, list[float]] = {"stock": [], "few": []}
    for pair in range(pairs):
        for way in times if pair % 2 else reversed(times):
            step(f"cold kernels {pair + 1} of {pairs}, {way}")
            answer = _run(way, crashing=False)
            times[way].append(answer["cpu"] / answer["jobs"] * 1e3)
    stock, ours = times.values()
    ratio = statistics.median(b / a for a, b in zip(stock, ours, strict=True))
    yield Figure("cold: CPU of a Triton kernel", "ms", statistics.median(stock), statistics.median(ours), ratio)


def _everything(base: Path) -> dict[str, str]:
    """The settings that cost time: copies of libraries, and signatures if the library for them is installed."""
    chosen = {"SAFECACHE_STRICT": "1", "SAFECACHE_NAMESPACE": "bench", "SAFECACHE_EXEC_DIR": str(base / "exec")}
    os.mkdir(chosen["SAFECACHE_EXEC_DIR"], 0o700)
    if keys.find_problem() is not None:
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


_ISOLATED = {"SAFECACHE_ISOLATE": "1"}
_STOCK = {"SAFECACHE": "0"}


class Way(NamedTuple):
    """A way of compiling: the argument for compiles.py, the settings, and the way that it is compared with."""

    what: str
    title: str
    settings: dict[str, str]
    base: str = "serial"
    survives: bool = False


_FEW = {
    "stock": Way("few", "in this process", _STOCK),
    "few": Way("few", "in this process, with safecache", {"SAFECACHE_ISOLATE": "0"}),
}
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
            # The order alternates, since each run affects the state of the machine for the next.
            for case in cases if number % 2 else reversed(cases):
                progress.update(task, description=f"{case[0]}{', with crashes' if case[1] else ''}")
                found[case].append(_run(*case))
                progress.advance(task)
    figures = [_figure(way, crashing, found) for way, crashing in cases]
    if as_json:
        print(json.dumps({"triton": metadata.version("triton"), "rounds": rounds, "figures": figures}))
    else:
        _print_ways(figures)
    return 0


def _run(way: str, crashing: bool) -> dict[str, float]:
    """One run with a cold cache: wall and CPU seconds, and the number of jobs. Raises OSError if it fails."""
    script = _SCRIPTS / "compiles.py"
    with tempfile.TemporaryDirectory(prefix="safecache-bench-") as base:
        environment = demo.make_environment() | demo.make_variables(Path(base) / "caches")
        chosen = (_WAYS | _FEW)[way]
        environment |= chosen.settings
        command = [sys.executable, str(script), chosen.what, *(["crashing"] if crashing else [])]
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


def _print_ways(figures: list[dict[str, object]]) -> None:
    titles = ("kernels compiled", "crashes", "wall s", "ratio", "CPU s", "ratio")
    table = Table(*titles, title=f"triton {metadata.version('triton')}")
    for figure in figures:
        times = (f"{figure[what]:.3f}" for what in ("wall", "wall_ratio", "cpu", "cpu_ratio"))
        table.add_row(str(figure["way"]), "10 %" if figure["crashing"] else "", *times)
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
