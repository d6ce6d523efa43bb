"""What processes have died of, by name as far as the cache tells: the strikes themselves are digests."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from safecache.places import layout, refs
from safecache.reporting.kinds import Kind
from safecache.trials import strikes
from safecache.upkeep import quarantined

__all__ = ["Struck", "listed"]


class Struck(NamedTuple):
    """``root``: the cache that it is part of; ``what``: its name; ``moment``: of the last strike, since the epoch."""

    root: str
    hash: str
    what: str
    strikes: int
    moment: float

    @property
    def state(self) -> str:
        """What follows for who looks it up."""
        if self.strikes >= strikes.BARRED:
            return "not looked up for 30 days"
        return "set aside" if self.strikes >= strikes.ASIDE else "set aside at the next death"


def listed(roots: Iterable[str]) -> Iterator[Struck]:
    """All in these caches, the last first in each. Raises OSError."""
    for root in roots:
        found = strikes.read(root).keys
        names = {refs.digest(kind.word, key): text for kind, key, text in _names(root)} if found else {}
        for hash, (number, moment) in sorted(found.items(), key=lambda each: -each[1][1]):
            yield Struck(root, hash, names.get(hash, _ELSEWHERE), number, moment)


_ELSEWHERE = "what is not in the cache: compiled ahead of time, or removed"


def _names(root: str) -> Iterator[tuple[Kind, str, str]]:
    for entry in layout.walk(root):
        yield entry.kind, entry.cache_key, f"{entry.kind.noun} {entry.cache_key}"
    paths = [code.path for code in layout.code(root)]
    with suppress(OSError):  # it is not known then what lay there
        paths += [item.origin for item in quarantined.listed([root])]
    for path in paths:
        moved = layout.locate(path)
        if moved is not None:
            yield moved.kind, moved.cache_key, f"{moved.kind.noun} {moved.cache_key}"
        for name in (path, os.path.dirname(path)):  # a library, or a kernel, which is a directory
            yield Kind.NATIVE_CODE, os.path.relpath(name, root), os.path.relpath(name, root)
