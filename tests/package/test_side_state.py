"""The table of side state in the guide: it names all that lies there, and nothing is believed without a seal that matters."""

from __future__ import annotations

import fnmatch
import re
import time
from pathlib import Path

import pytest
from helpers import filled
from helpers.caches import Cache
from helpers.in_process import isolated, settings

from safecache import history, recompile_check, session, single_flight
from safecache.crash_guard import markers, strikes
from safecache.crash_guard.markers import Blame
from safecache.explain import key_records
from safecache.fs import private_directory
from safecache.isolation import crashes
from safecache.places import layout, metadata
from safecache.places.layout import CodeFile
from safecache.places.refs import Ref
from safecache.remote import client, sender, stores
from safecache.remote import exchange as remote_leases
from safecache.reporting.kinds import Kind, Reason
from safecache.settings import config
from safecache.store import gate
from safecache.upkeep import limits

__all__ = ["isolated", "settings"]

GUIDE = Path(metadata.__file__).parents[1] / "guide" / "security.md"
ROW = re.compile(
    r"\| `(?P<file>[A-Z]+/[^`]+)` \| (?P<what>.*?) \| (?P<by>.*?) \| (?P<effect>.*?) \| (?P<belief>.*?) \|"
)
ROWS = [found.groupdict() for found in map(ROW.fullmatch, GUIDE.read_text().splitlines()) if found]
# What anybody who can write there may cause anyway.
HARMLESS = {"nothing", "a recompile", "a shorter wait", "a sweep 10 minutes later"}
# Of no more than this user.
BY_PLACE = {"CONFIG/safecache/*", "TMPDIR/safecache-live-*/.safecache-live"}


def row_of(file: str) -> str | None:
    """The last row that it matches: the more exact come first, but for the directory of keys."""
    return next((row["file"] for row in _exact_first() if fnmatch.fnmatchcase(file, row["file"])), None)


def _exact_first():
    return sorted(ROWS, key=lambda row: (row["file"] == "CONFIG/safecache/*", row["file"].endswith("differences/*/*")))


@pytest.fixture
def everything(tmp_path, settings, monkeypatch):
    """A cache, a user's directory, a temporary one and a remote, with a file of each kind."""
    pytest.importorskip("zstandard")
    places = {name: tmp_path / name.lower() for name in ("CACHE", "CONFIG", "TMPDIR", "REMOTE")}
    for place in places.values():
        place.mkdir(exist_ok=True)
    monkeypatch.setattr(private_directory.tempfile, "tempdir", str(places["TMPDIR"]))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(places["CACHE"]))
    monkeypatch.setattr(history._journal, "now", history._Journal())
    settings(XDG_CONFIG_HOME=places["CONFIG"], SAFECACHE_REMOTE=f"file://{places['REMOTE']}")
    session.reset()
    root = str(places["CACHE"])
    cache = Cache(places["CACHE"], time.time())
    filled.fill(places["CACHE"])
    cache.quarantined("a", 0)
    library = places["CACHE"] / "ab" / "cabc.so"
    library.parent.mkdir(exist_ok=True)
    library.write_bytes(b"code")
    gate.attest_file(CodeFile(str(library), root))
    lease = single_flight.open_lease(Ref(Kind.FX_ENTRY, "a", root))
    assert lease.try_to_hold()
    lease.sign(time.time())
    assert markers.get_own_marker(root, 0.0) is not None
    strikes.add(root, ["ab/cabc.so"], Blame.UNSURE, Reason.CRASHED_RUN, time.time())
    recompile_check.keep_pair(root, (Kind.FX_ENTRY, "a"), b"a", b"b", "", {})
    record = key_records.KeyRecord(Kind.FX_ENTRY, "f" + "a" * 51, "name", time.time(), ())
    key_records.remember(record, root)
    history.write("fx miss", root, {"key": "a"})
    found = crashes.Crash("signal", "ttir", 11)
    crashes.remember(root, "a" * 64, crashes.Note(found, "kernel", {}, None, time.time()))
    for folder, name in ((metadata.CRASHES, "a/report.json"), (metadata.TRASH, "a"), (metadata.UNSEALED, "a.o")):
        cache.file(places["CACHE"] / metadata.FOLDER / folder / name, 0)
    limits._claim_sweep(root)  # or what was published has
    claim, _ = remote_leases.acquire(Ref(Kind.FX_ENTRY, "a"), 0.0)
    assert claim is not None
    bundle = Ref(Kind.FX_ENTRY, filled.GRAPH, root)
    assert sender.send(client.get_background(), bundle).size
    with private_directory.create_temporary():
        yield places
    remote_leases._claims.reset()
    lease.release()
    session.reset()


def test_all_side_state_is_in_the_table_and_nothing_else_is(everything):
    files = []
    for name, place in everything.items():
        inner = place / metadata.FOLDER if name == "CACHE" else place
        files += [f"{name}/{path.relative_to(place)}" for path in inner.rglob("*") if not path.is_dir()]
    unknown = [file for file in files if row_of(file) is None]
    assert not unknown, unknown
    assert {row["file"] for row in ROWS} == {row_of(file) for file in files}


def test_each_folder_of_ours_has_a_row():
    names = {value for name, value in vars(metadata).items() if name.isupper() and name not in ("FOLDER",)}
    named = {row["file"].split("/")[2] for row in ROWS if row["file"].startswith("CACHE/")}
    assert names == named


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["file"])
def test_what_causes_more_than_a_recompile_needs_a_seal(row):
    assert row["effect"] in HARMLESS or row["file"] in BY_PLACE or "a seal of" in row["belief"], row


def test_settings_name_these_places(everything):
    assert config.current().config_home == str(everything["CONFIG"])
    assert config.current().remote == f"file://{everything['REMOTE']}" and stores.make_prefix().startswith(
        "safecache/2/"
    )
    assert layout.find_cache_root(str(everything["CACHE"] / "fxgraph" / "ab" / "fab" / "x"))
