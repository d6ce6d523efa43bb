"""Checks of what lies in the caches and in the remote: damaged, unsealed or without hits; reachable, writable, fast."""

from __future__ import annotations

import hashlib
import itertools
import os
import shlex
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TypeVar
from urllib.parse import urlsplit

from safecache.doctor import configuration, finding
from safecache.doctor.finding import Finding
from safecache.fs import folders, temporaries
from safecache.history import run_summary
from safecache.history.run_summary import Line
from safecache.places import layout
from safecache.remote import client, extras, parcels, stores
from safecache.remote.stores import Store
from safecache.reporting.kinds import UNREAD, Kind, Reason
from safecache.reporting.report import Refusal
from safecache.settings import config, settings
from safecache.settings.units import write_age, write_count, write_size
from safecache.signing import trust
from safecache.store.groups import Group
from safecache.tiers import levels
from safecache.upkeep import audit, inventory
from safecache.upkeep.audit import Audit, Refused

__all__ = ["check_contents", "check_hits", "check_remote"]

# Per directory: what takes a second or so.
_MOST_VERIFIED, _MOST_BYTES = 500, 256 << 20
# Seconds after which the writer of a file is presumed dead, as without locks.
_DEAD = 86400.0
_SHOWN = 3

_DAMAGED = {Reason.DAMAGED, Reason.BAD_SEAL, Reason.UNKNOWN_FORMAT, *UNREAD}
_OF_OTHERS = {Reason.OTHER_BUILD, Reason.OTHER_CPU, Reason.OTHER_GPU, Reason.OUTDATED}

T = TypeVar("T")

_TIMEOUT = 3.0  # seconds, for connecting, and for each answer
_SLOW = 0.1
_SKEW = 60.0
_ROUNDS = 3
# How many names are looked through for bundles to verify, how many of those are, and up to how many bytes each.
_NAMES, _BUNDLES, _SIZE = 2000, 8, 1 << 20
_UNENCRYPTED = ("redis", "valkey", "http")
_READ_ONLY = ("http", "https")
_LOCAL = ("localhost", "127.0.0.1", "::1")
_CONTENT = b"written by safecache doctor"
_DO_WITHOUT = "unset SAFECACHE_TIERS  # or leave out the remote, to do without it"


def check_contents(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Findings about leftover, quarantined and refused files, in each cache directory that exists."""
    for root in [*levels.list_caches(environ), *filter(os.path.isdir, config.current().layers)]:
        try:
            groups = inventory.take_inventory(root).groups
            yield from _check_leftovers(root, groups)
            yield from _check_quarantine(root, [group for group in groups if group.kind is Kind.QUARANTINE])
            yield from _check_struck(root)
            yield from _check_seals(root)
        except OSError as error:
            why = f"{error.strerror}. Its contents were not checked"
            yield finding.info("not-looked-into", f"{error.filename or root} cannot be read", why)


def _check_struck(root: str) -> Iterator[Finding]:
    found = list(audit.list_struck(layout.find_triton_caches(root)))
    if found:
        shown = "; ".join(f"{each.what} ({each.state})" for each in found[:_SHOWN])
        why = f"{shown}{'; …' if len(found) > _SHOWN else ''}. Those entries are recompiled"
        place = shlex.quote(root)
        remedy = f"safecache ls --crashed {place}  # once the cause is fixed: safecache forget --all --in {place}"
        what = f"processes died in first runs of entries in {root}"
        yield finding.warning("crashed-first-runs", what, why, remedy)


def _check_leftovers(root: str, groups: list[Group]) -> Iterator[Finding]:
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
        why = f"{write_count(len(old), 'temporary file')} of dead processes, {size}. They only take space"
        yield finding.info("stray-temporaries", f"{root} has leftovers", why, f"safecache gc {shlex.quote(root)}")


def _check_quarantine(root: str, groups: list[Group]) -> Iterator[Finding]:
    found = audit.list_quarantined([root])
    if not found:
        return
    reasons = Counter(item.reason or "without a note" for item in found)
    counts = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
    newest = write_age(max(0.0, time.time() - max(stamp for group in groups for stamp in group.stamps)))
    place = os.path.dirname(found[0].path)
    what = f"{write_count(len(found), 'file is', 'files are')} in quarantine in {place}"
    why = f"{counts}; the newest is {newest} old. Each was refused, and is recompiled"
    look = f"safecache quarantine --in {shlex.quote(root)}"
    yield finding.warning("quarantine", what, why, f"{look}  # once you have looked: {look} rm --all")


# What is verified ----------------------------------------------------------------------------------------------------


def _check_seals(root: str) -> Iterator[Finding]:
    locations, code = list(layout.walk(root)), list(layout.walk_code(root))
    number = len(locations) + len(code)
    if not number:
        return
    files = write_count(number, "file")
    if not configuration.has_key():
        why = f"this user has no key yet, and it holds {files}. What others sealed is recompiled"
        remedy = "export SAFECACHE_KEY_FILE=FILE  # the key that they were sealed with"
        yield finding.warning("entries-without-key", f"nothing in {root} can be verified", why, remedy)
        return
    entries, objects = _sample_files(locations, _MOST_VERIFIED // 2), _sample_files(code, _MOST_VERIFIED // 2)
    found = audit.audit(entries, objects)
    looked_at = len(entries) + len(objects)
    checked = files if looked_at == number else f"a sample of {looked_at} of {files}"
    yield from _report_refused(root, checked, found)


def _sample_files(found: list[T], most: int) -> list[T]:
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


def _report_refused(root: str, checked: str, found: Audit) -> Iterator[Finding]:
    quoted = shlex.quote(root)
    by_reason: dict[Reason, list[Refused]] = {}
    for each in found.refused:
        by_reason.setdefault(Reason(each.reason), []).append(each)
    damaged = [each for reason in Reason if reason in _DAMAGED for each in by_reason.pop(reason, [])]
    if damaged:
        what, why = (
            f"{len(damaged)} of {checked} in {root} are damaged",
            f"{_describe_refused(damaged)}. They are recompiled",
        )
        remedy = f"safecache verify {quoted}  # the next save replaces each; if more follow, check the disk: dmesg"
        yield finding.warning("damaged-entries", what, why, remedy)
    unsealed = by_reason.pop(Reason.UNSEALED, [])
    if unsealed:
        what, why = (
            f"{len(unsealed)} of {checked} in {root} are unsealed",
            f"{_describe_refused(unsealed)}. They are recompiled",
        )
        remedy = f"safecache adopt {quoted}  # only if no one else could write there"
        yield finding.warning("unsealed-entries", what, why, remedy)
    built_elsewhere = [each for reason in Reason if reason in _OF_OTHERS for each in by_reason.pop(reason, [])]
    if built_elsewhere:
        what = f"{len(built_elsewhere)} of {checked} in {root} are for other builds or machines"
        why = f"{_describe_refused(built_elsewhere)}. They serve those that they were built for"
        yield finding.info("entries-of-other-builds", what, why, f"safecache gc --max-age 30d {quoted}")
    for reason, refused in by_reason.items():
        what = f"{len(refused)} of {checked} in {root} are refused"
        why = f"{reason.value}: {_describe_refused(refused)}. They are recompiled"
        remedy = "safecache keys" if "key" in reason.value else f"safecache verify {quoted}"
        yield finding.warning("refused-entries", what, why, f"{remedy}  # then: {reason.help}")
    if not found.refused:
        yield finding.ok("entries", f"{checked} in {root} verify", "none is refused")


def _describe_refused(refused: list[Refused]) -> str:
    shown = "; ".join(f"{each.path}: {each.evidence}" for each in refused[:_SHOWN])
    return f"{shown}{'; …' if len(refused) > _SHOWN else ''}"


def check_hits(environ: Mapping[str, str]) -> Iterator[Finding]:
    """A finding for each cache directory whose latest runs with lookups hit none of the entries that were there."""
    for root in levels.list_caches(environ):
        with suppress(OSError):  # another check reports that it cannot be read
            yield from _check_runs(root, run_summary.read_unverified(root))


def _check_runs(root: str, lines: list[Line]) -> Iterator[Finding]:
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
    older = sum(0 < folders.get_mtime(entry.path) < began[run] for entry in layout.walk(root))
    if not older:
        return
    why = ", ".join(f"{count} {label}" for label, count in counts.most_common(_SHOWN))
    what = f"the last run ({run}) hit nothing in {root}"
    why = f"{sum(counts.values())} lookups, {why}; {write_count(older, 'entry was', 'entries were')} there before it"
    remedy = "safecache stats --run last  # then safecache explain NAME"
    if len(unserved) == 1:
        yield finding.info("never-hit", what, f"{why}. A new model does that once", remedy)
    else:
        yield finding.warning("never-hit", what, f"{why}. Nor did any of the {len(unserved) - 1} before it", remedy)


def check_remote(_: Mapping[str, str]) -> Iterator[Finding]:
    """Findings about the remote cache, if there is one. What is written there is removed again."""
    url = config.current().remote
    if url is None:
        return
    shown, lacking = settings.hide_password(url), extras.find_missing(url)
    if lacking is not None:
        why = f"{lacking[0]} is not installed. Compiles do without the remote cache"
        yield finding.error("remote-library", f"the remote cache {shown} cannot be used", why, lacking[1])
        return
    yield from _check_encryption(url, shown)
    try:
        store = stores.make_store(url, stores.make_terms(config.current())._replace(connect=_TIMEOUT, timeout=_TIMEOUT))
        first, took = _measure_times(store)
    except Exception as error:
        said = f"{type(error).__name__}: {client.format_error_line(error, url).rstrip('.')}"
        why = f"{said}. Compiles do without the remote cache"
        yield finding.error("remote-unreachable", f"the remote cache {shown} cannot be used", why, _find_remedy(said))
        return
    yield _judge_speed(shown, first, took)
    yield from _check_rights(store, url, shown)
    yield from _check_bundles(store, url, shown)


def _check_encryption(url: str, shown: str) -> Iterator[Finding]:
    parts = urlsplit(url)
    if parts.scheme not in _UNENCRYPTED or parts.hostname in _LOCAL:
        return
    what = f"the remote cache {shown} is used without TLS"
    if parts.password or config.current().remote_password_file:
        why = f"its scheme is {parts.scheme}://. The network can read the password and what is sent"
        tls = f"export SAFECACHE_TIERS={parts.scheme}s://HOST:PORT  # with the rest of its URL"
        yield finding.warning("remote-without-tls", what, why, tls)
    else:
        why = f"its scheme is {parts.scheme}://. The network can read what is sent; what comes is verified"
        yield finding.info("remote-without-tls", what, why)


def _measure_times(store: Store) -> tuple[float, float]:
    """Seconds for the first answer, with the connection, and for the fastest of those that follow."""
    took = []
    for _ in range(1 + _ROUNDS):
        began = time.monotonic()
        store.find_sizes([f"{stores.make_prefix()}doctor"])
        took.append(time.monotonic() - began)
    return took[0], min(took[1:])


def _find_remedy(said: str) -> str:
    text = said.lower()
    if "certificate" in text or "ssl" in text:
        return "export SAFECACHE_TIERS='rediss://HOST:PORT/0?ssl_ca_certs=FILE'  # FILE: its authority's certificate"
    if "auth" in text or "password" in text or "credential" in text:
        return "export SAFECACHE_TIERS='URL?password_file=FILE'  # or the variables that the store's library reads"
    return _DO_WITHOUT


def _judge_speed(shown: str, first: float, took: float) -> Finding:
    why = f"an answer took {1000 * took:.1f} ms, and the first one {1000 * first:.0f} ms"
    limit = config.current().remote_timeout
    if took >= limit:
        remedy = f"export SAFECACHE_TIERS='URL?timeout={took * 2:.1f}'  # or unset it, to do without"
        why = f"{why}. Compiles give up after {limit:g} s and do without it"
        return finding.error("remote-too-slow", f"the remote cache {shown} is too slow", why, remedy)
    if took > _SLOW:
        why = f"{why}. A compile waits as long once or twice for each graph"
        return finding.warning("remote-slow", f"the remote cache {shown} is slow", why, _DO_WITHOUT)
    return finding.ok("remote", f"the remote cache {shown} answers", why)


def _check_rights(store: Store, url: str, shown: str) -> Iterator[Finding]:
    """Whether it may be written; and what its clock says, which some engines only tell of what was written."""
    before = time.time()
    there = store.read_clock()
    if config.current().remote_read_only or urlsplit(url).scheme in _READ_ONLY:
        why = "its URL or a setting says so. What this process compiles is not sent"
        yield finding.info("remote-read-only", f"the remote cache {shown} is only read", why)
    else:
        folder = f"{stores.make_prefix()}doctor/"
        name = folder + hashlib.sha256(os.uname().nodename.encode()).hexdigest()[:8]
        try:
            store.write(name, _CONTENT)
            written = [each.modified for each in store.list_names(folder) if each.name == name]
            there = there or next(iter(written), None)
            if store.read_unverified([name]).get(name) != _CONTENT:
                raise OSError("what was written is not there")
            store.remove(name)
            yield finding.ok("remote-writable", f"the remote cache {shown} can be written", "a file was, and removed")
        except Exception as error:
            why = f"{type(error).__name__}: {client.format_error_line(error, url).rstrip('.')}. Other hosts recompile"
            remedy = "export SAFECACHE_TIERS='URL?read_only=1'  # if that is meant, or else give this user the right"
            yield finding.warning("remote-not-writable", f"the remote cache {shown} cannot be written", why, remedy)
    here = (before + time.time()) / 2
    if there is not None and abs(there - here) > _SKEW:
        way = "ahead of" if there > here else "behind"
        why = f"it is {abs(there - here):.0f} s {way} this machine's. Keys expire, and contents age, by either"
        remedy = "timedatectl set-ntp true  # on both"
        yield finding.warning("remote-clock", f"the clock of the remote cache {shown} differs", why, remedy)


def _check_bundles(store: Store, url: str, shown: str) -> Iterator[Finding]:
    """Whether some of what lies there could be used here."""
    if not configuration.has_key():
        why = "this user has no key yet. Nothing there is used here, and no other host uses what is sent from here"
        remedy = "export SAFECACHE_KEY_FILE=FILE  # the key that the other hosts use"
        yield finding.warning("remote-no-key", f"nothing in the remote cache {shown} can be verified", why, remedy)
        return
    try:
        found = list(_judge_bundles(store))
    except Exception as error:
        why = (
            f"{type(error).__name__}: {client.format_error_line(error, url).rstrip('.')}. Its contents were not checked"
        )
        yield finding.info("remote-not-listed", f"the remote cache {shown} cannot be listed", why)
        return
    held = f"{write_count(len(found), 'bundle')} of the remote cache {shown}"
    refused = Counter((each.reason, each.evidence) for each in found if each is not None)
    for (reason, why), count in refused.items():
        what = f"{count} of {held} cannot be used"
        if reason is Reason.UNKNOWN_KEY:
            remedy = "safecache keys trust FILE  # the public part of that key; or export SAFECACHE_KEY_FILE=FILE"
            yield finding.warning("remote-unknown-key", what, f"{why}. They are recompiled", remedy)
        else:
            remedy = "safecache copy --again here URL  # from a cache that verifies"
            yield finding.warning("remote-refused", what, f"{reason.value}: {why}. They are recompiled", remedy)
    if found and not refused:
        yield finding.ok("remote-key", f"this host can use {held}", "none is refused")


def _judge_bundles(store: Store) -> Iterator[Refusal | None]:
    """Yield, for some remote bundles of this build, the refusal or None. Nothing is unpacked."""
    before = stores.make_prefix()
    names = (
        name
        for stored in itertools.islice(store.list_names(before), _NAMES)
        if stored.size <= _SIZE
        and (kind := parcels.parse_kind(name := stored.name[len(before) :])) is not None
        and parcels.is_of_this_build(name, kind)
    )
    for name in itertools.islice(names, _BUNDLES):
        content = store.read_unverified([before + name]).get(before + name)
        if isinstance(content, bytes):
            judged = trust.examine(content, Kind.PARCEL, name, None)
            yield judged if isinstance(judged, Refusal) else None
