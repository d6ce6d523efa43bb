"""Checks of the remote cache: if it can be used, how fast, for what, and who has sealed it."""

from __future__ import annotations

import hashlib
import itertools
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from safecache.doctor import configuration, finding
from safecache.doctor.finding import Finding
from safecache.remote import client, extras, parcels, stores
from safecache.remote.stores import Store, Terms
from safecache.reporting.kinds import Kind, Reason
from safecache.reporting.report import Refusal
from safecache.settings import config, settings
from safecache.signing import trust

__all__ = ["check_remote"]

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
_DO_WITHOUT = "leave it out of SAFECACHE_TIERS  # to do without it"


def check_remote(_: Mapping[str, str]) -> Iterator[Finding]:
    """Findings about the remote cache, if there is one. What is written there is removed again."""
    url = config.current().remote
    if url is None:
        return
    shown, lacking = settings.without_password(url), extras.missing(url)
    if lacking is not None:
        evidence = f"The remote cache {shown} cannot be used: {lacking[0]} is not installed."
        yield finding.error("remote-library", evidence, lacking[1])
        return
    yield from _in_clear(url, shown)
    try:
        store = stores.connected(url, Terms(_TIMEOUT, _TIMEOUT, config.current().remote_max_bytes))
        first, took = _times(store)
    except Exception as error:
        said = client.first_error_line(error, url)
        evidence = f"The remote cache {shown} cannot be used: {type(error).__name__}: {said}."
        yield finding.error("remote-unreachable", evidence, _remedy(f"{type(error).__name__} {said}"))
        return
    yield _speed(shown, first, took)
    yield from _rights(store, url, shown)
    yield from _keys(store, url, shown)


def _in_clear(url: str, shown: str) -> Iterator[Finding]:
    parts = urlsplit(url)
    if parts.scheme not in _UNENCRYPTED or parts.hostname in _LOCAL:
        return
    evidence = f"The remote cache {shown} is used without TLS: who is on the way can read what is sent"
    if parts.password or config.current().remote_password_file:
        tls = f"export SAFECACHE_TIERS={parts.scheme}s://…"
        yield finding.warning("remote-without-tls", f"{evidence}, and the password.", tls)
    else:
        yield finding.info("remote-without-tls", f"{evidence}. What comes from there is verified in any case.")


def _times(store: Store) -> tuple[float, float]:
    """Seconds for the first answer, with the connection, and for the fastest of those that follow."""
    took = []
    for _ in range(1 + _ROUNDS):
        began = time.monotonic()
        store.sizes([f"{stores.prefix()}doctor"])
        took.append(time.monotonic() - began)
    return took[0], min(took[1:])


def _remedy(said: str) -> str:
    text = said.lower()
    if "certificate" in text or "ssl" in text:
        return f"export SAFECACHE_TIERS='rediss://HOST:PORT/0?ssl_ca_certs=FILE'  # its authority; or {_DO_WITHOUT}"
    if "auth" in text or "password" in text or "credential" in text:
        return f"export SAFECACHE_TIERS='…?password_file=FILE'  # or the store's own variables; or {_DO_WITHOUT}"
    return _DO_WITHOUT


def _speed(shown: str, first: float, took: float) -> Finding:
    evidence = f"The remote cache {shown} answers in {1000 * took:.1f} ms, and the first time in {1000 * first:.0f} ms"
    limit = config.current().remote_timeout
    if took >= limit:
        remedy = f"export SAFECACHE_TIERS='…?timeout={took * 2:.1f}'  # or {_DO_WITHOUT}"
        return finding.error("remote-too-slow", f"{evidence}: after {limit:g} s it is given up.", remedy)
    if took > _SLOW:
        return finding.warning("remote-slow", f"{evidence}, once or twice for each graph.", _DO_WITHOUT)
    return finding.ok("remote", f"{evidence}.")


def _rights(store: Store, url: str, shown: str) -> Iterator[Finding]:
    """Whether it may be written; and what its clock says, which some engines only tell of what was written."""
    before = time.time()
    there = store.clock()
    if config.current().remote_read_only or urlsplit(url).scheme in _READ_ONLY:
        yield finding.info("remote-read-only", f"Nothing is sent to the remote cache {shown}, as is set.")
    else:
        folder = f"{stores.prefix()}doctor/"
        name = folder + hashlib.sha256(os.uname().nodename.encode()).hexdigest()[:8]
        try:
            store.write(name, _CONTENT)
            written = [each.modified for each in store.names(folder) if each.name == name]
            there = there or next(iter(written), None)
            if store.read([name]).get(name) != _CONTENT:
                raise OSError("what was written is not there")
            store.remove(name)
            yield finding.ok("remote-writable", f"The remote cache {shown} may be written.")
        except Exception as error:
            said = f"{type(error).__name__}: {client.first_error_line(error, url)}"
            evidence = f"The remote cache {shown} cannot be written: {said}."
            remedy = "export SAFECACHE_TIERS='…?read_only=1'  # if that is meant"
            yield finding.warning("remote-not-writable", evidence, remedy)
    here = (before + time.time()) / 2
    if there is not None and abs(there - here) > _SKEW:
        way = "ahead of" if there > here else "behind"
        evidence = f"The clock of the remote cache {shown} is {abs(there - here):.0f} s {way} the one here: keys "
        evidence += "expire, and contents age, by either."
        yield finding.warning("remote-clock", evidence, "timedatectl  # on both")


def _keys(store: Store, url: str, shown: str) -> Iterator[Finding]:
    """Whether some of what lies there could be used here."""
    if not configuration.has_key():
        evidence = f"This user has no key yet: nothing in the remote cache {shown} can be used here, nor what is sent "
        evidence += "from here elsewhere."
        yield finding.warning("remote-no-key", evidence, "export SAFECACHE_KEY_FILE=FILE  # the hosts' own")
        return
    try:
        found = list(_judged(store))
    except Exception as error:
        evidence = (
            f"The remote cache {shown} cannot be listed: {type(error).__name__}: {client.first_error_line(error, url)}."
        )
        yield finding.info("remote-not-listed", f"{evidence} It is not known whether what it has can be used here.")
        return
    refused = Counter((each.reason, each.evidence, each.remedy) for each in found if each is not None)
    for (reason, why, remedy), count in refused.items():
        evidence = f"{count} of {len(found)} bundles of the remote cache {shown} would be refused here: {why}."
        if reason is Reason.UNKNOWN_KEY:
            remedy = "safecache keys trust FILE  # the public part of that key; or export SAFECACHE_KEY_FILE=FILE"
        code = "remote-unknown-key" if reason is Reason.UNKNOWN_KEY else "remote-refused"
        yield finding.warning(code, evidence, remedy or "safecache copy --again here URL  # from a cache that verifies")
    if found and not refused:
        yield finding.ok("remote-key", f"{len(found)} bundles of the remote cache {shown} verify.")


def _judged(store: Store) -> Iterator[Refusal | None]:
    """Of some bundles of this build, what is against using them; nothing is unpacked."""
    before = stores.prefix()
    names = (
        name
        for stored in itertools.islice(store.names(before), _NAMES)
        if stored.size <= _SIZE
        and (kind := parcels.kind_of(name := stored.name[len(before) :])) is not None
        and parcels.is_of_this_build(name, kind)
    )
    for name in itertools.islice(names, _BUNDLES):
        content = store.read([before + name]).get(before + name)
        if isinstance(content, bytes):
            judged = trust.examine(content, Kind.PARCEL, name, None)
            yield judged if isinstance(judged, Refusal) else None
