"""``safecache warm -- CMD``: run CMD until a fresh process finds everything in the caches, and say what it does not."""

from __future__ import annotations

import argparse
import re
import shutil
import signal
import sys
from collections.abc import Iterator

from safecache.cli import EXIT_FINDINGS, NotRunError, UsageError
from safecache.cli.main import make_child_environment
from safecache.cli.view import Complaint, View, add_json, number
from safecache.reporting.kinds import Kind
from safecache.settings.units import write_count
from safecache.upkeep import warming
from safecache.upkeep.warming import Process, Warmed

__all__ = ["add_warm", "run_warm"]

_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_CALL = "import pkgutil, sys; pkgutil.resolve_name(sys.argv[1])()"
_MOST = 100


def add_warm(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    most = f"run CMD in at most N processes (default {warming.PROCESSES})"
    parser.add_argument("--processes", type=number, default=warming.PROCESSES, metavar="N", help=most)
    where = "additional cache directory, for a CMD that chooses its own"
    parser.add_argument("--in", dest="directories", action="append", default=[], metavar="DIR", help=where)
    add_json(parser)
    what = "command to run, or module:function"
    parser.add_argument("argv", nargs=argparse.REMAINDER, metavar="-- CMD...", help=what)


def run_warm(arguments: argparse.Namespace) -> View:
    """0 if all hit in the last process, CMD's status if that is not 0, else 1. Raises OSError."""
    words = arguments.argv[1:] if arguments.argv[:1] == ["--"] else arguments.argv
    if not words or not 1 <= arguments.processes <= _MOST:
        raise UsageError("no command given: safecache warm -- CMD...")
    is_function = len(words) == 1 and _FUNCTION.fullmatch(words[0]) and shutil.which(words[0]) is None
    command = [sys.executable, "-c", _CALL, words[0]] if is_function else words
    path = {"PYTHONPATH": make_child_environment()["PYTHONPATH"]}
    try:
        # What it prints is not to be mixed with ours.
        warmed = warming.run(
            command, arguments.directories, arguments.processes, env=path, stdout=sys.stderr if arguments.json else None
        )
    except OSError as error:
        if error.filename != words[0]:
            raise
        raise NotRunError(words[0], error) from None
    if warmed.interrupted and not warmed.status:
        code = 128 + signal.Signals[warmed.interrupted]
    else:
        code = warmed.status or (0 if warmed.all_hit else EXIT_FINDINGS)
    data = {
        "all_hit": warmed.all_hit,
        "status": code,
        "interrupted": warmed.interrupted,
        "processes": [each._asdict() for each in warmed.processes],
        "missing": [each._asdict() for each in warmed.missing],
        "never_cached": [each._asdict() for each in warmed.never_cached],
        "obstacles": warmed.obstacles,
    }
    return View(data, _format_lines(warmed), code)


def _format_lines(warmed: Warmed) -> Iterator[str]:
    for number_of, process in enumerate(warmed.processes, 1):
        yield f"process {number_of}: {_describe_process(process)}"
        if process.status:
            yield Complaint(f"safecache warm: process {number_of} ended with status {_format_status(process.status)}")
    if warmed.interrupted:
        yield Complaint(f"safecache warm: interrupted by {warmed.interrupted}")
    for each in warmed.missing:
        yield f"still missing: {each.layer} {each.name or each.key}: {each.why}"
    for each in warmed.never_cached:
        yield f"never cached by torch, compiled in each process: {each.layer} {each.name}: {each.why}"
    if warmed.is_idle and not warmed.status:
        yield _IDLE
    yield from warmed.obstacles
    if warmed.all_hit:
        yield "warm: a fresh process finds everything in the caches"


_IDLE = (
    "nothing was looked up: CMD has compiled nothing with torch or Triton, or keeps caches of its own choice, which"
    " --in DIR names"
)


def _format_status(status: int) -> str:
    try:
        return f"{status} ({signal.Signals(status - 128).name})" if status > 128 else str(status)
    except ValueError:
        return str(status)


_NOUNS = {kind.plural: kind.noun for kind in Kind} | {"libraries": "library"}


def _describe_process(process: Process) -> str:
    compiled = ", ".join(write_count(count, _NOUNS[kinds], kinds) for kinds, count in process.compiled.items())
    spent = f" in {process.compiling_seconds:.1f} s" if process.compiling_seconds else ""
    parts = [f"{process.hits} of {write_count(process.lookups, 'lookup')} hit"]
    parts.append(f"compiled and kept{spent}: {compiled}" if compiled else "nothing was compiled")
    if process.missed and not compiled:
        parts[-1] = f"{process.missed} missed, and nothing new was kept"
    if process.unsent:
        parts.append(f"{write_count(process.unsent, 'group was', 'groups were')} not sent to the remote cache")
    if process.left:
        parts.append(f"{write_count(process.left, 'process still runs', 'processes still run')} that it has started")
    return f"{'; '.join(parts)} ({process.seconds:.1f} s)"
