"""Whatever raises in what a lookup consults, of whatever type, a lookup ends as a miss, and is reported once."""

from __future__ import annotations

import logging
import math
import os

import pytest

from safecache import fingerprints, history, single_flight
from safecache.entries import loading, searches
from safecache.errors import CacheReadError
from safecache.explain import key_records
from safecache.places import layout
from safecache.places.refs import Ref
from safecache.reporting.kinds import Kind
from safecache.signing import keyring, provenance, seal, trust
from safecache.store import entry_files

KEY = "f" + "a" * 51
ERRORS = [RuntimeError("it broke"), UnicodeEncodeError("utf-8", "\ud800", 0, 1, "no"), OverflowError("2^80")]
ERRORS += [MemoryError(), RecursionError("too deep")]
EACH = pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
PLACES = {
    "entry's bytes": (entry_files, "read_unverified_entry"),
    "seal": (trust, "examine"),
    "what the key omits": (fingerprints, "_compare_ops"),
    "lease": (single_flight, "open_lease"),
    "record of the key": (key_records, "recall"),
    "explanation": (key_records, "find_absence_reason"),
    "journal": (history, "_append_line"),
}


@pytest.fixture
def source(tmp_path, monkeypatch):
    """Where there is one entry that may be used, and what it is."""
    root = tmp_path / "cache"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(root))
    directory = root / Ref(Kind.FX_ENTRY, KEY, "").path
    directory.mkdir(parents=True)
    stated = provenance.make_statement(Kind.FX_ENTRY) | fingerprints.build_fingerprint(Ref(Kind.FX_ENTRY, KEY))
    content = seal.attach(b"N.", Kind.FX_ENTRY, KEY, keyring.current().signing, stated, "default")
    (directory / layout.name_entry(content)).write_bytes(content)
    return loading.Source(Ref(Kind.FX_ENTRY, KEY, str(root)), lambda entry: entry is None)


MISSING = ("lease", "record of the key", "explanation", "journal")


def look_up(source):
    """What is found, as torch looks for it, and as a process asks that has to wait for another."""
    with (
        single_flight.compile_scope(source.ref.kind, math.inf),
        searches.track_lookup(source.ref, lambda: "f") as search,
    ):
        searches.last_compile_seconds(source.ref.kind)
        found = [entry for entry, _, _ in loading.look_up_entries(source, local=True, remote=None)]
        if found:
            search.end_as_hit()
        else:
            search.end_as_miss()
    return found


def fail(source, monkeypatch, place, error):
    module, name = PLACES[place]
    if place in MISSING:
        (entry,) = os.listdir(source.ref.directory)
        os.unlink(os.path.join(source.ref.directory, entry))

    def raise_it(*_, **__):
        raise error

    # Others have imported it by its name.
    for each in (module, single_flight) if hasattr(single_flight, name) else (module,):
        monkeypatch.setattr(each, name, raise_it)


def test_entry_is_found(source):
    assert look_up(source) == [None]


@EACH
@pytest.mark.parametrize("place", PLACES)
def test_lookup_ends(source, monkeypatch, caplog, place, error):
    fail(source, monkeypatch, place, error)
    with caplog.at_level(logging.WARNING, "safecache"):
        for _ in range(3):
            look_up(source)
    assert sum(history.get_counts().values()) == 3
    lines = [line for line in caplog.messages if type(error).__name__ in line]
    assert len(lines) == 1, caplog.messages


@EACH
@pytest.mark.parametrize("place", PLACES)
def test_strict_mode_raises_an_error_from_it(source, settings, monkeypatch, place, error):
    settings(SAFECACHE_STRICT=1)
    fail(source, monkeypatch, place, error)
    with pytest.raises(CacheReadError) as caught:
        look_up(source)
    assert caught.value.__cause__ is error
