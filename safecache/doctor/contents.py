"""Checks for useless files in the caches: damaged, unsealed or quarantined; and for caches without hits."""

from __future__ import annotations

import os
import shlex
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TypeVar

from safecache.doctor import configuration, finding
from safecache.doctor.finding import Finding
from safecache.files import folders, temporaries
from safecache.history import run_summary
from safecache.history.run_summary import Line
from safecache.places import layout
from safecache.reporting.kinds import Kind, Reason
from safecache.settings import config
from safecache.settings.units import write_age, write_size
from safecache.store.groups import Group
from safecache.tiers import levels
from safecache.upkeep import audit, inventory, quarantined
from safecache.upkeep.audit import Audit, Refused

__all__ = ["check_contents", "check_hits"]

# Per directory: what takes a second or so.
_MOST_VERIFIED, _MOST_BYTES = 500, 256 << 20
# Seconds after which the writer of a file is presumed dead, as without locks.
_DEAD = 86400.0
_SHOWN = 3

_DAMAGED = {
    Reason.DAMAGED,
    Reason.BAD_SEAL,
    Reason.UNKNOWN_FORMAT,
    Reason.NOT_A_FILE,
    Reason.TOO_LARGE,
    Reason.UNREADABLE,
}
_OF_OTHERS = {Reason.OTHER_BUILD, Reason.OTHER_CPU, Reason.OTHER_GPU, Reason.OUTDATED}

T = TypeVar("T")


def check_contents(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Findings about leftover, quarantined and refused files, in each cache directory that exists."""
    for root in [*levels.existing_caches(environ), *filter(os.path.isdir, config.current().layers)]:
        try:
            groups = inventory.take(root).groups
            yield from _left_behind(root, groups)
            yield from _quarantined(root, [group for group in groups if group.kind is Kind.QUARANTINE])
            yield from _struck(root)
            yield from _verified(root)
        except OSError as error:
            evidence = f"{error.filename or root} cannot be looked into: {error.strerror}."
            yield finding.info("not-looked-into", evidence)


def _struck(root: str) -> Iterator[Finding]:
    found = list(quarantined.list_struck(layout.triton_caches(root)))
    if found:
        shown = "; ".join(f"{each.what} ({each.state})" for each in found[:_SHOWN])
        evidence = f"In {root} processes have died in the first run of {shown}{'; …' if len(found) > _SHOWN else ''}."
        place = shlex.quote(root)
        remedy = f"safecache ls --crashed {place}  # and to have all tried again: safecache forget --all --in {place}"
        yield finding.warning("crashed-first-runs", evidence, remedy)


def _left_behind(root: str, groups: list[Group]) -> Iterator[Finding]:
    """Temporary files of dead writers, including those among the files of an entry."""
    files = [
        file
        for group in groups
        for file in group.files
        if group.kind is Kind.TEMPORARY or temporaries.is_temporary(os.path.basename(file.path))
    ]
    old = [file for file in files if time.time() - file.modified > _DEAD]
    if old:
        size = write_size(sum(file.size for file in old))
        evidence = f"{root} holds {len(old)} temporary files of writers that are dead, {size}."
        yield finding.info("stray-temporaries", evidence, f"safecache gc {shlex.quote(root)}")


def _quarantined(root: str, groups: list[Group]) -> Iterator[Finding]:
    found = quarantined.listed([root])
    if not found:
        return
    reasons = Counter(item.reason or "without a note" for item in found)
    counts = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
    newest = write_age(max(0.0, time.time() - max(stamp for group in groups for stamp in group.stamps)))
    place = os.path.dirname(found[0].path)
    evidence = f"{len(found)} files were moved to {place}: {counts}. The newest is {newest} old."
    look = f"safecache quarantine --in {shlex.quote(root)}"
    yield finding.warning("quarantine", evidence, f"{look}  # and when you have looked: {look} rm --all")


# What is verified ----------------------------------------------------------------------------------------------------


def _verified(root: str) -> Iterator[Finding]:
    locations, code = list(layout.walk(root)), list(layout.code(root))
    number = len(locations) + len(code)
    if not number:
        return
    if not configuration.has_key():
        evidence = f"{root} holds {number} files, and this user has no key yet: what others have sealed is not used."
        remedy = "export SAFECACHE_KEY_FILE=FILE  # with the key that they were sealed with"
        yield finding.warning("entries-without-key", evidence, remedy)
        return
    entries, objects = _sample(locations, _MOST_VERIFIED // 2), _sample(code, _MOST_VERIFIED // 2)
    found = audit.audit(entries, objects)
    looked_at = len(entries) + len(objects)
    said = f"Of {number} files in {root}, {'all' if looked_at == number else f'a sample of {looked_at}'} were verified"
    yield from _refused(root, said, found)


def _sample(found: list[T], most: int) -> list[T]:
    """An even sample, the same each time, of no more bytes than are read in a second or so."""
    step = max(1, -(-len(found) // most))
    left, taken = _MOST_BYTES // 2, []
    for item in found[::step]:
        with suppress(OSError):
            size = os.lstat(item.path).st_size  # type: ignore[attr-defined]
            if size <= left:
                left -= size
                taken.append(item)
    return taken


def _refused(root: str, said: str, found: Audit) -> Iterator[Finding]:
    quoted = shlex.quote(root)
    by_reason: dict[Reason, list[Refused]] = {}
    for each in found.refused:
        by_reason.setdefault(Reason(each.reason), []).append(each)
    damaged = [each for reason in Reason if reason in _DAMAGED for each in by_reason.pop(reason, [])]
    if damaged:
        remedy = f"safecache verify {quoted}  # the next save heals an entry"
        yield finding.warning("damaged-entries", f"{said}, and {_text(damaged)}.", remedy)
    unsealed = by_reason.pop(Reason.UNSEALED, [])
    if unsealed:
        evidence = f"{said}, and {_text(unsealed)}: they have no seal, and will be recompiled."
        remedy = f"safecache adopt {quoted}  # only if no one else could write there"
        yield finding.warning("unsealed-entries", evidence, remedy)
    built_elsewhere = [each for reason in Reason if reason in _OF_OTHERS for each in by_reason.pop(reason, [])]
    if built_elsewhere:
        evidence = f"{said}, and {_text(built_elsewhere)}. They serve those that they were built for."
        yield finding.info("entries-of-other-builds", evidence, f"safecache gc --max-age 30d {quoted}")
    for reason, refused in by_reason.items():
        remedy = "safecache keys" if "key" in reason.value else f"safecache verify {quoted}"
        yield finding.warning("refused-entries", f"{said}, and {_text(refused)} [{reason.value}].", remedy)
    if not found.refused:
        yield finding.ok("entries", f"{said}, and nothing is wrong with them.")


def _text(refused: Iterable[Refused]) -> str:
    refused = list(refused)
    shown = "; ".join(f"{each.path}: {each.evidence}" for each in refused[:_SHOWN])
    return f"{len(refused)} would be refused: {shown}{'; …' if len(refused) > _SHOWN else ''}"


def check_hits(environ: Mapping[str, str]) -> Iterator[Finding]:
    """A finding for each cache directory whose latest runs with lookups hit none of the entries that were there."""
    for root in levels.existing_caches(environ):
        with suppress(OSError):  # another check reports that it cannot be read
            yield from _never_hit(root, run_summary.read(root))


def _never_hit(root: str, lines: list[Line]) -> Iterator[Finding]:
    unserved: list[tuple[str, Counter[str]]] = []
    began: dict[str, float] = {}
    for line in lines:
        began.setdefault(line.run, line.time)
    for run in reversed(began):
        summary = run_summary.summarise(lines, run)
        if summary is not None and summary.hits:
            break
        if summary is not None and summary.lookups:
            unserved.append((run, summary.lookups))
    if not unserved:
        return
    run, counts = unserved[0]
    older = sum(0 < folders.modified(entry.path) < began[run] for entry in layout.walk(root))
    if not older:
        return
    why = ", ".join(f"{count} {label}" for label, count in counts.most_common(_SHOWN))
    evidence = f"The last run in {root} ({run}) looked up {sum(counts.values())} and hit nothing: {why}."
    evidence += f" {older} entries were there before it."
    remedy = "safecache stats --run last"
    if len(unserved) == 1:
        yield finding.info("never-hit", f"{evidence} A new model does that once.", remedy)
    else:
        yield finding.warning("never-hit", f"{evidence} Nor did any of the {len(unserved) - 1} before it.", remedy)
