"""``safecache demo``: a real model, cold and warm, and then the same faults in stock torch and with safecache."""

from __future__ import annotations

import argparse
import json
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from safecache.cli import view
from safecache.cli.view import Heading, Table, View, add_json
from safecache.settings import children, config
from safecache.settings.units import write_count

__all__ = ["ENTRY_FOLDERS", "Cache", "Outcome", "add_demo", "make_environment", "make_variables", "run_demo"]

_SCRIPT = Path(__file__).with_name("workload.py")
_LIMIT_SECONDS = 900
ENTRY_FOLDERS = ("aotautograd", "fxgraph")


def make_environment() -> dict[str, str]:
    """An environment for a child that can import safecache, with every setting at its default."""
    environment = config.copy_environment()
    for variable in config.VARIABLES:
        environment.pop(variable, None)
    return children.add_package(environment)


def make_variables(base: Path) -> dict[str, str]:
    """The variables that keep a process's caches and keys below ``base``, and its temporary files beside it.

    Torch keeps precompiled headers among those, which would otherwise be left behind for each signing key made here.
    """
    folders = {"TORCHINDUCTOR_CACHE_DIR": "cache", "TRITON_CACHE_DIR": "triton", "XDG_CONFIG_HOME": "config"}
    return {name: str(base / folder) for name, folder in folders.items()} | {"TMPDIR": str(base.parent)}


class Outcome(NamedTuple):
    """Output of a process: its answer on stdout, and stderr."""

    answer: dict[str, Any]
    stderr: str

    @property
    def error(self) -> str | None:
        """Why the work failed; None if it was done."""
        error: str | None = self.answer.get("error")
        return error

    @property
    def is_hit(self) -> bool:
        """Whether nothing was compiled."""
        return bool(self.answer.get("aot_hits")) and bool(self.answer.get("fx_hits"))


class Cache:
    """A cache directory with the keys that belong to it, used by stock torch or by safecache with these settings."""

    def __init__(self, base: Path, *, stock: bool, settings: Mapping[str, str] | None = None) -> None:
        self.base = base
        self.stock = stock
        self.settings = settings or {}
        self.directory = base / "cache"

    def run(self, *options: str) -> Outcome:
        """Do the work once, in a fresh process."""
        environment = make_environment() | make_variables(self.base) | dict(self.settings)
        # As text: modules beside a script, such as copy, would take the place of Python's.
        command = [sys.executable, "-c", _SCRIPT.read_text(), *(["--stock"] if self.stock else []), *options]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_LIMIT_SECONDS)
        lines = done.stdout.strip().splitlines()
        if not lines:
            return Outcome({"error": f"the process died with status {done.returncode}"}, done.stderr)
        return Outcome(json.loads(lines[-1]), done.stderr)

    def copy(self, base: Path) -> Cache:
        """The same cache and keys in another place."""
        shutil.copytree(self.base, base, symlinks=True)
        return Cache(base, stock=self.stock, settings=self.settings)

    def list_entries(self, folder: str) -> list[Path]:
        """The entries below ``aotautograd`` or ``fxgraph``."""
        found = (self.directory / folder).rglob("*")
        return sorted(path for path in found if path.is_file() and not path.name.startswith("."))


class Row(NamedTuple):
    """Line of the report; ``fine``: whether safecache kept its promise."""

    scenario: str
    stock: str
    safecache: str
    fine: bool


class _Planted:
    """Creates a file when it is unpickled: a harmless substitute for planted code."""

    def __init__(self, marker: Path) -> None:
        self.marker = str(marker)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str, str]]:
        return open, (self.marker, "w")


Scene = Callable[[Cache], tuple[str, bool]]


def _describe_outcome(outcome: Outcome) -> str:
    if outcome.error is not None:
        return f"COMPILE FAILED: {outcome.error[:90]}"
    state = "hit" if outcome.is_hit else "compiled"
    return f"{state} in {outcome.answer['seconds']:.1f} s"


def _is_correct(outcome: Outcome) -> bool:
    return outcome.error is None and outcome.answer["difference"] < 1e-3


def _run_cold(cache: Cache) -> tuple[str, bool]:
    outcome = cache.run()
    count = sum(len(cache.list_entries(folder)) for folder in ENTRY_FOLDERS)
    sealed = outcome.answer.get("stats", {}).get("sealed", 0)
    saved = write_count(count, "entry", "entries")
    return f"{_describe_outcome(outcome)}, {saved} saved, {sealed} sealed", _is_correct(outcome) and sealed == count


def _run_warm(cache: Cache) -> tuple[str, bool]:
    outcome = cache.run()
    verified = outcome.answer.get("stats", {}).get("verified", 0)
    return f"{_describe_outcome(outcome)}, {verified} verified", _is_correct(
        outcome
    ) and outcome.is_hit and verified >= 3


def _plant_pickle(cache: Cache) -> tuple[str, bool]:
    marker = cache.base / "the-planted-code-ran"
    entry = cache.list_entries("aotautograd")[0]
    entry.with_name("0").write_bytes(pickle.dumps(_Planted(marker)))
    outcome = cache.run()
    ran = "THE PLANTED CODE RAN" if marker.exists() else "the planted code did not run"
    return f"{ran}, {_describe_outcome(outcome)}", not marker.exists() and _is_correct(outcome) and outcome.is_hit


def _truncate_entry(cache: Cache) -> tuple[str, bool]:
    entry = cache.list_entries("aotautograd")[0]
    entry.write_bytes(entry.read_bytes()[: entry.stat().st_size // 2])
    first, second = cache.run(), cache.run()
    left = "the damaged file is still there" if entry.exists() else "the damaged file is in quarantine"
    fine = _is_correct(first) and _is_correct(second) and second.is_hit and not entry.exists()
    return f"{_describe_outcome(first)}, then {_describe_outcome(second)}; {left}", fine


def _flip_bit(cache: Cache) -> tuple[str, bool]:
    entry = cache.list_entries("aotautograd")[0]
    content = bytearray(entry.read_bytes())
    content[len(content) // 2] ^= 1
    entry.write_bytes(content)
    outcome = cache.run()
    served = "THE ALTERED ENTRY WAS SERVED, " if outcome.is_hit else ""
    return f"{served}{_describe_outcome(outcome)}", _is_correct(outcome) and not outcome.is_hit


def _plant_launcher(cache: Cache) -> tuple[str, bool]:
    for folder in ENTRY_FOLDERS:
        shutil.rmtree(cache.directory / folder)
    outcome = cache.run("--launcher", "--strict-autograd-cache")
    named = "entry.runtime_metadata.launchers[0]" in outcome.stderr
    text = ", warned of entry.runtime_metadata.launchers[0]" if named else ""
    return _describe_outcome(outcome) + text, _is_correct(outcome) and named


# These two fill the caches; each of the others starts from a copy of them.
_FIRST: tuple[tuple[str, Scene], ...] = (("cold compile", _run_cold), ("warm start in a fresh process", _run_warm))
_FAULTS: tuple[tuple[str, Scene], ...] = (
    ("hostile pickle planted beside an entry", _plant_pickle),
    ("entry truncated; two runs", _truncate_entry),
    ("one bit of an entry flipped", _flip_bit),
    ("launcher that does not pickle, torch strict", _plant_launcher),
)


def add_demo(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    add_json(parser)


def run_demo(arguments: argparse.Namespace) -> View:  # noqa: ARG001
    """Run every scenario with stock torch and with safecache; 0 if safecache kept every promise."""
    with tempfile.TemporaryDirectory(prefix="safecache-demo-") as name:
        base = Path(name)
        stock, ours = Cache(base / "stock", stock=True), Cache(base / "safecache", stock=False)
        for cache in (stock, ours):
            cache.directory.mkdir(parents=True)
        rows = list(_play_scenes(stock, ours, base))
    headings = [Heading(name, folds=True) for name in ("scenario", "stock torch", "with safecache", "")]
    cells = [(*row[:3], "ok" if row.fine else "FAILED") for row in rows]
    text: list[str | Table] = ["The same work, the same faults:", Table(headings, cells, {"FAILED": "red"})]
    return View([row._asdict() for row in rows], text, 0 if all(row.fine for row in rows) else 1)


def _play_scenes(stock: Cache, ours: Cache, base: Path) -> Iterator[Row]:
    steps = [(scenario, scene, cache) for scenario, scene in (*_FIRST, *_FAULTS) for cache in (stock, ours)]
    start = time.monotonic()
    texts: list[str] = []
    with view.show_progress(total=len(steps)) as (bar, task):
        for number, (scenario, scene, cache) in enumerate(steps, 1):
            described = f"{scenario}: {cache.base.name}"
            bar.update(task, description=described)
            if bar.disable:
                passed = f"{time.monotonic() - start:.0f} s"
                print(f"step {number} of {len(steps)}, after {passed}: {described}", file=sys.stderr, flush=True)
            if scene in dict(_FAULTS).values():
                cache = cache.copy(base / f"{cache.base.name}-{scene.__name__}")
            text, fine = scene(cache)
            texts.append(text)
            bar.advance(task)
            if not cache.stock:
                yield Row(scenario, texts[-2], texts[-1], fine)
