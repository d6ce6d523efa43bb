"""A whole cache compared with what its program compiles now, into an empty cache of its own.

A cache holds no graphs to compile again: only the program makes them, with its operators, kernels and devices.
"""

from __future__ import annotations

import os
import subprocess
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from safecache.files import opening, private_directory
from safecache.places import layout
from safecache.recompile_check import comparison, evidence
from safecache.recompile_check.comparison import Difference, Key
from safecache.store import entry_files

__all__ = ["Differing", "Recompiled", "recompile"]

# Seconds between looks at how far the program is.
_TICK = 0.5


class Differing(NamedTuple):
    """An entry that is compiled otherwise now. ``kept``: where both lie; "" for what could not be written."""

    path: str
    differences: list[Difference]
    kept: str


class Recompiled(NamedTuple):
    """``uncompared``: paths, or words for what lies in no file, each with why. ``status``: that of the program."""

    alike: int
    differing: list[Differing]
    uncompared: list[tuple[str, str]]
    status: int


def recompile(
    root: str, command: Sequence[str], environment: Mapping[str, str], tell: Callable[[int], object]
) -> Recompiled:
    """Run ``command`` with an empty cache, and compare each entry of ``root`` with the one that has its key then.

    ``tell`` is called with how many entries there are by then. Raises OSError: also for a program that cannot be run.
    """
    with private_directory.create_temporary() as directory:
        # Of the user's own, who alone may write there; compilers' temporary files go with it.
        fresh = os.path.join(directory, "cache")
        status = _run(command, {**environment, "TORCHINDUCTOR_CACHE_DIR": fresh}, fresh, tell)
        alike, differing, uncompared = _compared(root, fresh)
    return Recompiled(alike, differing, uncompared, status)


def _run(command: Sequence[str], environment: Mapping[str, str], fresh: str, tell: Callable[[int], object]) -> int:
    process = subprocess.Popen(command, env=environment)
    try:
        while True:
            try:
                return process.wait(_TICK)
            except subprocess.TimeoutExpired:
                tell(len(_located(fresh)))
    finally:
        if process.poll() is None:  # this command is interrupted
            process.terminate()
            process.wait()


def _located(root: str) -> dict[Key, list[str]]:
    """The entries by their keys: of one key, there is one for each set of guards."""
    found: dict[Key, list[str]] = {}
    for path, kind, key in layout.walk(root) if os.path.isdir(root) else ():
        found.setdefault((kind, key), []).append(path)
    return found


def _compared(root: str, fresh: str) -> tuple[int, list[Differing], list[tuple[str, str]]]:
    ours, theirs = _located(root), _located(fresh)
    alike, differing, uncompared = 0, [], []
    for key, paths in ours.items():
        if key not in theirs:
            uncompared += [(path, "the program has not compiled it") for path in paths]
            continue
        for path in paths:
            try:
                found = _nearest(key, path, theirs[key], ours, theirs)
            except (opening.UnusableEntry, OSError, ValueError) as error:
                uncompared.append((path, getattr(error, "detail", "") or str(error)))
            except Exception as error:  # of unpickling, such as of a class that the program defines
                uncompared.append((path, f"it cannot be read here: {type(error).__name__}: {error}"))
            else:
                alike += found is None
                differing += [_kept(root, key, path, *found)] if found is not None else []
    lacking = [key for key in theirs if key not in ours]
    return alike, differing, uncompared + [(f"{kind.noun} {key}", "it is not in the cache") for kind, key in lacking]


def _nearest(
    key: Key, path: str, made: Sequence[str], ours: Mapping[Key, list[str]], theirs: Mapping[Key, list[str]]
) -> tuple[bytes, bytes, list[Difference]] | None:
    """None if one that was made is like the one at ``path``; else both as bytes, and how they differ.

    Of those with other guards, one is of as many parts that differ as any other: the first stands for all.
    """
    content = _read(key, path)
    found = ChainMap({key: content}, _Graphs(ours))
    nearest: tuple[bytes, bytes, list[Difference]] | None = None
    for each in made:
        other = _read(key, each)
        differences = comparison.compare(key, found, ChainMap({key: other}, _Graphs(theirs)))
        if not differences:
            return None
        nearest = nearest or (content, other, differences)
    return nearest


class _Graphs(dict[Key, bytes]):
    """The FX graph entries of a cache, each read when it is asked for: only those of what differs are."""

    def __init__(self, located: Mapping[Key, list[str]]) -> None:
        super().__init__()
        self._located = located

    def __contains__(self, key: object) -> bool:
        return key in self._located

    def __missing__(self, key: Key) -> bytes:
        if key not in self._located:
            raise KeyError(key)
        return _read(key, self._located[key][0])


def _read(key: Key, path: str) -> bytes:
    return entry_files.read_entry(path, entry_files.max_entry_size(key[0]))


def _kept(root: str, key: Key, path: str, found: bytes, made: bytes, differences: list[Difference]) -> Differing:
    try:
        place = evidence.keep(root, key, found, made, comparison.show(differences), {"path": path})
    except OSError:
        place = ""
    return Differing(path, differences, place)
