"""Packs: a cache as one signed file, verified and read group by group without unpacking.

A feature: it may import the core, and no other feature. As a tier, what a cache lacks is taken from the packs that
SAFECACHE_TIERS names, which are never written: each is opened once, as something is first looked for in it. Commands
use ``archive``, by way of upkeep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from safecache.errors import PackRefusedError
from safecache.places.refs import Ref
from safecache.ports import Bundle
from safecache.reporting import events, report
from safecache.reporting.kinds import ENTRIES, Count, Kind, Reason
from safecache.reporting.report import Refusal
from safecache.session import Part, inherit
from safecache.settings import config

if TYPE_CHECKING:
    from safecache.packs.archive import Pack

__all__ = ["find_candidates", "keep"]

_Result = TypeVar("_Result")
_REMEDY = "Recompiling what it contains. Help: safecache doctor --for PACK"
_LIBRARY, _EXTRA = "zstandard", "pack"


class _State:
    def __init__(self) -> None:
        self.packs: dict[str, Pack | None] = {}
        # Entries of a key are taken once: they are all there then, and the key is looked up again for other guards.
        self.taken: set[tuple[Kind, str]] = set()


_state: Part[_State] = Part(_State, inherit)


def find_candidates(ref: Ref) -> Iterator[Bundle]:
    """Yield what the packs have, in their order: see Tier.candidates()."""
    state, wanted = _state.now, (ref.kind, ref.key)
    if wanted in state.taken:
        return

    def note_verdict(refusal: Refusal | None) -> None:
        if refusal is None:
            events.count(Count.PACK_HIT)
            if ref.kind in ENTRIES:
                state.taken.add(wanted)

    for path in config.current().packs:
        with report.contain_errors(f"the pack {path}", _REMEDY):
            pack = _find_pack(path)
            if pack is None:
                continue
            for packed in pack.by_key.get(wanted, ()):
                files = _try_pack(path, partial(pack.read, packed))
                if files is not None:
                    yield Bundle(ref._replace(root=""), files, f"the pack {path}", "pack", note_verdict)


def keep(ref: Ref, *, again: bool = False) -> None:
    """Do nothing for Tier.keep(): a command makes packs."""


def _find_pack(path: str) -> Pack | None:
    from safecache.packs import archive  # it is rarely needed

    with _state.lock:
        packs = _state.now.packs
        if path not in packs:
            if not config.current().strict:
                packs[path] = None  # whatever fails in it does so once
            if config.is_installed(_LIBRARY):
                packs[path] = _try_pack(path, partial(archive.open_pack, path))
            else:
                text, why = f"cannot use pack {path}", f"{_LIBRARY} is not installed"
                remedy = f"Help: {config.install_line(_EXTRA)}"
                events.report(Reason.UNREADABLE, text, why=why, cause=_LIBRARY, remedy=remedy)
                packs[path] = None
        return packs[path]


def _try_pack(path: str, work: Callable[[], _Result]) -> _Result | None:
    """Return what ``work`` does; None, and report it, for a pack that cannot be used: this process does without it."""
    try:
        return work()
    except PackRefusedError as error:
        events.add_refusal(str(error))
        text, remedy = f"cannot use pack {path}", error.remedy or _REMEDY
        events.report(Reason(error.reason), text, why=error.why, cause=path, remedy=remedy)
    except OSError as error:
        text, why = f"cannot read pack {path}", f"{error.strerror}"
        events.report(Reason.UNREADABLE, text, why=why, cause=path, remedy=_REMEDY, error=error)
    return None
