"""Adopting seals what is intact and private, in place, and says of the rest why not."""

from __future__ import annotations

import errno
import os
import pickle

import pytest
from conftest import needs_root

from safecache.errors import EntryRefusedError, KeyringError
from safecache.places import layout
from safecache.reporting import report
from safecache.reporting.kinds import Count, Kind
from safecache.signing import keyring, seal, trust
from safecache.store import entry_files
from safecache.upkeep.audit import adopt

VALUE = {"graph": [1, 2, 3]}
PAYLOAD = pickle.dumps(VALUE)
FOLDERS = {Kind.AOT_ENTRY: "aotautograd/akey", Kind.FX_ENTRY: "fxgraph/fk/fkey"}
KEYS = {Kind.AOT_ENTRY: "akey", Kind.FX_ENTRY: "fkey"}


@pytest.fixture
def root(tmp_path):
    path = tmp_path / "cache"
    path.mkdir()
    return path


def put(root, content, kind=Kind.AOT_ENTRY, name=None):
    """An entry file, named as torch would unless a name is given."""
    path = root / FOLDERS[kind] / (name or layout.name_entry(content))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def only_file(root, kind=Kind.AOT_ENTRY):
    (path,) = (root / FOLDERS[kind]).iterdir()
    return path


def sealed_by(key, kind=Kind.AOT_ENTRY, cache_key="akey"):
    return seal.attach(PAYLOAD, kind, cache_key, key, {})


def assert_sealed_by_us(path, kind):
    content = path.read_bytes()
    verdict = seal.verify(content, kind, KEYS[kind], keyring.current().find)
    assert verdict.reason is None and verdict.provenance["adopted"] == "yes"
    assert path.name == layout.name_entry(content)
    assert pickle.loads(content) == VALUE and seal.strip_unverified(content) == PAYLOAD


def state(path):
    # Not the whole status: reading a file moves its access time.
    status = path.lstat()
    return status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns


def assert_skipped(root, path, reason):
    before = state(path)
    sealed, already, skipped = adopt(str(root))
    assert (sealed, already) == (0, 0)
    assert [place for place, _ in skipped] == [str(path)]
    assert reason in skipped[0][1]
    assert state(path) == before and list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("kind", KEYS, ids=lambda kind: kind.value)
def test_entry_of_stock_torch_is_sealed_in_place(root, kind):
    old = put(root, PAYLOAD, kind)
    assert adopt(str(root)) == (1, 0, [])
    assert not old.exists()
    assert_sealed_by_us(only_file(root, kind), kind)


@pytest.mark.parametrize("kind", KEYS, ids=lambda kind: kind.value)
def test_entry_of_another_key_is_sealed_anew(root, kind):
    old = put(root, sealed_by(keyring.Key.derive(b"another"), kind, KEYS[kind]), kind)
    assert adopt(str(root)) == (1, 0, [])
    assert not old.exists()
    assert_sealed_by_us(only_file(root, kind), kind)


def test_second_run_finds_everything_sealed_and_changes_nothing(root):
    for kind in KEYS:
        put(root, PAYLOAD, kind)
    assert adopt(str(root)) == (2, 0, [])
    before = {kind: state(only_file(root, kind)) for kind in KEYS}
    assert adopt(str(root)) == (0, 2, [])
    assert {kind: state(only_file(root, kind)) for kind in KEYS} == before


def test_entries_that_can_be_are_sealed_beside_one_that_cannot(root):
    damaged = put(root, PAYLOAD, name="damaged")
    put(root, PAYLOAD)
    sealed, already, skipped = adopt(str(root))
    assert (sealed, already, len(skipped)) == (1, 0, 1)
    assert damaged.read_bytes() == PAYLOAD


def test_damaged_entry_is_skipped(root):
    path = put(root, PAYLOAD[:-1], name=layout.name_entry(PAYLOAD))
    assert_skipped(root, path, "damaged: its name is not the hash of its content")


@pytest.mark.timeout(20, method="signal")  # would hang for ever
def test_fifo_is_skipped_at_once(root):
    path = root / FOLDERS[Kind.AOT_ENTRY] / "fifo"
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    assert_skipped(root, path, "a FIFO")


def test_file_that_others_can_write_is_skipped(root):
    path = put(root, PAYLOAD)
    path.chmod(0o666)
    assert_skipped(root, path, f"not private: {path} has mode 0666")


def test_directory_of_entries_that_others_can_write_is_skipped(root):
    path = put(root, PAYLOAD)
    path.parent.chmod(0o777)
    assert_skipped(root, path, f"not private: {path.parent} has mode 0777")


@needs_root
def test_file_of_another_user_is_skipped(root):
    path = put(root, PAYLOAD)
    os.chown(path, 54321, -1)
    assert_skipped(root, path, "of uid 54321")


def test_cache_directory_that_others_can_write_is_refused(root):
    path = put(root, PAYLOAD)
    root.chmod(0o777)
    with pytest.raises(EntryRefusedError, match=f"{root} is not private.* has mode 0777"):
        adopt(str(root))
    assert path.read_bytes() == PAYLOAD


def test_missing_cache_directory_is_an_error(root):
    with pytest.raises(FileNotFoundError):
        adopt(str(root / "absent"))


def test_without_a_key_nothing_is_sealed(root, settings):
    path = put(root, PAYLOAD)
    settings(SAFECACHE_KEY_FILE=root / "absent")
    with pytest.raises(KeyringError, match="absent"):
        adopt(str(root))
    assert path.read_bytes() == PAYLOAD


def test_old_file_stays_until_the_sealed_one_is_there(root, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    path = put(root, PAYLOAD)
    monkeypatch.setattr(entry_files, "publish", full)
    assert_skipped(root, path, "No space left on device")


def test_temporary_files_and_what_is_no_entry_are_left_alone(root):
    temporary = put(root, PAYLOAD, name=".0123.tmp")
    elsewhere = root / "other" / "place" / "entry"
    elsewhere.parent.mkdir(parents=True)
    elsewhere.write_bytes(PAYLOAD)
    assert adopt(str(root)) == (0, 0, [])
    assert temporary.read_bytes() == elsewhere.read_bytes() == PAYLOAD


def contradictory():
    """Entries in the folder of akey whose seal, by our own key, says that they are not what lies there."""
    ours = keyring.current().signing
    good = sealed_by(ours)
    return {
        "other-cache-key": sealed_by(ours, cache_key="bkey"),
        "other-kind": sealed_by(ours, Kind.FX_ENTRY),
        "damaged": b"\x81" + good[1:],
        "bad-seal": sealed_by(keyring.Key(ours.id, b"other" * 8)),
    }


@pytest.mark.parametrize("what", ["other-cache-key", "other-kind", "damaged", "bad-seal"])
def test_entry_that_our_own_key_contradicts_is_skipped(root, what):
    path = put(root, contradictory()[what])
    assert_skipped(root, path, "")


@pytest.mark.parametrize(
    ("changes", "said"), [({"cache_key": "bkey"}, "another cache key"), ({"kind": Kind.FX_ENTRY}, "kind")]
)
def test_entry_that_the_seal_of_an_unknown_key_contradicts_is_neither_sealed_nor_private(root, settings, changes, said):
    """Nobody knows whose seal that is, and it says that this is something else."""
    path = put(root, sealed_by(keyring.Key.derive(b"another"), **changes))
    assert_skipped(root, path, said)
    settings(SAFECACHE_TRUST="private")
    found = trust.examine(path.read_bytes(), Kind.AOT_ENTRY, "akey", str(path))
    assert isinstance(found, report.Refusal) and said in found.evidence
    good = put(root, sealed_by(keyring.Key.derive(b"another")))
    assert trust.examine(good.read_bytes(), Kind.AOT_ENTRY, "akey", str(good)) is Count.ACCEPTED_PRIVATE
