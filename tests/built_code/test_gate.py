"""Compiled code is taken if this process built it or a sealed record names its digest, and from no other CPU."""

from __future__ import annotations

import hashlib
import json
import os
import shutil

import pytest

from safecache.errors import EntryRefusedError
from safecache.places.layout import CodeFile
from safecache.reporting import events
from safecache.reporting.kinds import Kind, Reason
from safecache.settings import config
from safecache.signing import keyring, provenance, seal
from safecache.signing.keys import Key
from safecache.store import attestations, entry_files, gate, manifests
from safecache.tiers.directory_faults import Unreadable


@pytest.fixture
def root(tmp_path, monkeypatch):
    forget(monkeypatch)
    directory = tmp_path / "cache"
    directory.mkdir()
    return directory


@pytest.fixture
def library(root):
    path = root / "ab" / "abc.so"
    path.parent.mkdir()
    path.write_bytes(b"\x7fELF code")
    return path


def forget(monkeypatch):
    """As a new process would begin."""
    attestations._state.reset()


def admit(path, root):
    is_there = gate.quarantine_unattested(CodeFile(str(path), str(root)))
    assert is_there == path.exists()
    return is_there


def test_what_this_process_built_is_taken(library, root):
    gate.attest_file(CodeFile(str(library), str(root)))
    assert admit(library, root) and gate.verify_load_path(CodeFile(str(library), str(root))) == (str(library), None)


def test_record_attests_it_in_the_next_process(library, root, monkeypatch):
    gate.attest_file(CodeFile(str(library), str(root)))
    forget(monkeypatch)
    assert admit(library, root)
    assert events.read_counters() == {"code sealed": 1, "code verified": 1}


def test_without_a_record_it_is_moved_away(library, root, monkeypatch):
    assert not admit(library, root) and events.read_counters()["unsealed"] == 1
    library.write_bytes(b"\x7fELF code")
    with pytest.raises(EntryRefusedError, match="no sealed record"):
        gate.verify_load_path(CodeFile(str(library), str(root)))


@pytest.mark.parametrize("how", ["longer", "flipped", "shorter", "empty"])
def test_content_that_changed_since_is_refused(library, root, monkeypatch, how):
    gate.attest_file(CodeFile(str(library), str(root)))
    good = library.read_bytes()
    library.write_bytes({"longer": good + b"x", "flipped": good[:-1] + b"X", "shorter": good[:-1], "empty": b""}[how])
    forget(monkeypatch)
    assert not admit(library, root) and events.read_counters()["damaged"] == 1


def test_record_of_one_file_does_not_attest_another(library, root, monkeypatch):
    gate.attest_file(CodeFile(str(library), str(root)))
    other = library.with_name("other.so")
    other.write_bytes(library.read_bytes())
    record = manifests.record_path(CodeFile(str(other), str(root)))
    os.makedirs(os.path.dirname(record), exist_ok=True)
    os.link(manifests.record_path(CodeFile(str(library), str(root))), record)
    forget(monkeypatch)
    assert not admit(other, root) and events.read_counters()["other cache key"] == 1


@pytest.mark.parametrize("how", ["record of the same place", "record moved to where it is looked for"])
def test_library_does_not_move_to_another_place_of_the_same_cache(library, root, monkeypatch, how):
    """The name alone is no identity: a library belongs to the path below its cache that it was built at."""
    gate.attest_file(CodeFile(str(library), str(root)))
    other = root / "cd" / library.name
    other.parent.mkdir()
    other.write_bytes(library.read_bytes())
    if how.startswith("record moved"):
        record = manifests.record_path(CodeFile(str(other), str(root)))
        os.makedirs(os.path.dirname(record), exist_ok=True)
        os.replace(manifests.record_path(CodeFile(str(library), str(root))), record)
    forget(monkeypatch)
    refused = "other cache key" if how.startswith("record moved") else "unsealed"
    assert not admit(other, root) and events.read_counters()[refused] == 1


def test_cache_that_is_copied_as_a_whole_still_attests(library, root, monkeypatch, tmp_path):
    gate.attest_file(CodeFile(str(library), str(root)))
    forget(monkeypatch)
    copied = tmp_path / "elsewhere" / "cache"
    shutil.copytree(root, copied)
    assert admit(copied / "ab" / "abc.so", copied) and events.read_counters()["code verified"] == 1


def test_record_of_0_1_0_which_is_bound_to_a_name_alone_is_as_none(library, root, monkeypatch):
    digest = hashlib.sha256(library.read_bytes()).hexdigest()
    stated = json.dumps({"sha256": digest, "stamp": None}).encode()
    key = keyring.current().signing
    old = seal.attach(
        stated,
        Kind.NATIVE_CODE,
        library.name,
        key,
        provenance.make_statement(Kind.NATIVE_CODE),
        config.current().namespace,
    )
    hashed = hashlib.sha256(library.name.encode()).hexdigest()
    for place in (hashed, os.path.basename(manifests.record_path(CodeFile(str(library), str(root))))):
        entry_files.publish(str(root / ".safecache" / "records" / place[:2] / place), old, str(root))
    assert not admit(library, root)


def test_record_of_another_key_does_not_attest(library, root, monkeypatch, tmp_path):
    gate.attest_file(CodeFile(str(library), str(root)))
    forget(monkeypatch)
    key = tmp_path / "key"
    key.write_bytes(b"k" * 32)
    key.chmod(0o600)
    monkeypatch.setenv("SAFECACHE_KEY_FILE", str(key))
    config.reload()
    assert not admit(library, root) and events.read_counters()["unknown key"] == 1


@pytest.mark.parametrize("damage", [lambda content: content[:-1], lambda content: b"", lambda content: b"x" * 300])
def test_damaged_record_does_not_attest(library, root, monkeypatch, damage):
    gate.attest_file(CodeFile(str(library), str(root)))
    with open(manifests.record_path(CodeFile(str(library), str(root))), "r+b") as file:
        content = damage(file.read())
        file.seek(0)
        file.truncate()
        file.write(content)
    forget(monkeypatch)
    assert not admit(library, root)


def test_code_for_a_cpu_that_has_more_is_refused(library, root, monkeypatch):
    monkeypatch.setattr(provenance, "list_instructions", lambda: "avx2 avx512f x86_64")
    gate.attest_file(CodeFile(str(library), str(root)))
    forget(monkeypatch)
    monkeypatch.setattr(provenance, "list_instructions", lambda: "avx2 x86_64")
    assert not admit(library, root) and events.read_counters()["other CPU"] == 1
    library.write_bytes(b"built on the oldest")
    gate.attest_file(CodeFile(str(library), str(root)))
    forget(monkeypatch)
    monkeypatch.setattr(provenance, "list_instructions", lambda: "avx2 avx512f x86_64")
    assert admit(library, root)


def test_code_for_a_cpu_that_has_less_is_taken(library, root, monkeypatch):
    monkeypatch.setattr(provenance, "list_instructions", lambda: "avx2 x86_64")
    gate.attest_file(CodeFile(str(library), str(root)))
    forget(monkeypatch)
    monkeypatch.setattr(provenance, "list_instructions", lambda: "avx2 avx512f x86_64")
    assert admit(library, root)


def test_this_cpu_is_described_by_its_machine_and_instructions():
    words = provenance.list_instructions().split()
    assert os.uname().machine in words and len(words) > 3


def change_below_the_file_system(monkeypatch, path, content):
    """As a disk does that returns other bytes: no time and no size tells."""
    identity = gate.filesystem.get_identity(path.stat())
    path.write_bytes(content)
    monkeypatch.setattr(gate.filesystem, "get_identity", lambda _: identity)


@pytest.mark.parametrize("mode", [0o644, 0o666], ids=["private", "open"])
def test_what_the_kernel_says_of_a_file_is_no_evidence_in_the_next_process(library, root, monkeypatch, mode):
    library.write_bytes(b"\x7fELF" + bytes(2 << 20))
    library.chmod(mode)
    gate.attest_file(CodeFile(str(library), str(root)))
    change_below_the_file_system(monkeypatch, library, b"\x7fELF" + bytes(2 << 20)[:-1] + b"!")
    forget(monkeypatch)
    assert not admit(library, root) and events.read_counters()["damaged"] == 1


def test_what_the_kernel_says_of_a_file_is_evidence_for_seconds_only(library, root, monkeypatch):
    gate.attest_file(CodeFile(str(library), str(root)))
    now = [0.0]
    monkeypatch.setattr(attestations.time, "monotonic", lambda: now[0])
    assert gate.judge_file(CodeFile(str(library), str(root))) is None
    change_below_the_file_system(monkeypatch, library, b"\x7fELF evil")
    now[0] = attestations._FRESH
    assert gate.judge_file(CodeFile(str(library), str(root))).reason is Reason.DAMAGED


class TestWithoutASealingKey:
    """What this process and its children build is attested by a key of theirs, and nothing else is taken."""

    @pytest.fixture(autouse=True)
    def no_key(self, monkeypatch):
        monkeypatch.setattr(keyring, "_made", None)
        monkeypatch.setattr(keyring, "current", lambda: keyring.Keyring(None, problem="no key today"))

    def test_a_file_that_nobody_else_could_have_written_is_not_taken_for_that(self, library, root):
        assert not admit(library, root) and events.read_counters()["unsealed"] == 1

    def test_what_a_child_has_built_is_taken(self, library, root, monkeypatch):
        assert gate.attest_file(CodeFile(str(library), str(root)))
        forget(monkeypatch)
        assert admit(library, root)

    def test_what_another_such_process_has_built_is_not(self, library, root, monkeypatch):
        gate.attest_file(CodeFile(str(library), str(root)))
        forget(monkeypatch)
        monkeypatch.setattr(keyring, "_made", None)
        assert not admit(library, root) and events.read_counters()["unknown key"] == 1

    def test_a_process_that_gets_the_secret_takes_it(self, library, root, monkeypatch):
        gate.attest_file(CodeFile(str(library), str(root)))
        secret = keyring.hand_down()
        forget(monkeypatch)
        monkeypatch.setattr(keyring, "_made", None)
        keyring.take_secret(secret)
        assert admit(library, root)

    def test_the_secret_is_not_in_the_cache(self, library, root):
        gate.attest_file(CodeFile(str(library), str(root)))
        written = [path.read_bytes() for path in root.rglob("*") if path.is_file()]
        assert len(written) == 2 and not any(keyring.hand_down() in content for content in written)

    def test_a_record_for_another_cache_is_not_made(self, library):
        assert manifests.make_record(CodeFile(str(library)), b"code", {}) is None

    def test_the_record_of_somebody_who_can_seal_is_left(self, library, root, monkeypatch):
        stranger = Key.derive(b"the key of a build farm, which verifies here")
        monkeypatch.setattr(keyring, "current", lambda: keyring.Keyring(stranger))
        gate.attest_file(CodeFile(str(library), str(root)))
        (record,) = root.glob(".safecache/records/*/*")
        sealed = record.read_bytes()
        monkeypatch.setattr(keyring, "current", lambda: keyring.Keyring(None, trusted={stranger.id: stranger}))
        assert gate.attest_file(CodeFile(str(library), str(root))) and record.read_bytes() == sealed
        assert gate.attest_file(CodeFile(str(library), str(root)), content=b"another") and record.read_bytes() != sealed


class TestPrivateTrust:
    """``SAFECACHE_TRUST=private`` lets a file do without a record, and never against one."""

    @pytest.fixture(autouse=True)
    def private(self, settings):
        settings(SAFECACHE_TRUST="private")

    def test_a_private_file_without_a_record_is_taken(self, library, root):
        assert admit(library, root)

    def test_one_that_others_could_have_written_is_not(self, library, root):
        library.chmod(0o666)
        assert not admit(library, root)

    def test_a_flipped_byte_is_refused_against_its_record(self, library, root, monkeypatch):
        gate.attest_file(CodeFile(str(library), str(root)))
        library.write_bytes(b"\x7fELF eode")
        forget(monkeypatch)
        assert not admit(library, root) and events.read_counters()["damaged"] == 1

    @pytest.mark.parametrize("content", [b"\x7fELF code", b"\x7fELF evil"], ids=["same", "other"])
    def test_the_record_of_a_stranger_can_object(self, library, root, monkeypatch, content, tmp_path, settings):
        gate.attest_file(CodeFile(str(library), str(root)))
        library.write_bytes(content)
        forget(monkeypatch)
        key = tmp_path / "key"
        key.write_bytes(b"k" * 32)
        key.chmod(0o600)
        settings(SAFECACHE_KEY_FILE=key)
        assert admit(library, root) is (content == b"\x7fELF code")

    @pytest.mark.parametrize("how", ["revoked", "expired"])
    def test_the_record_of_a_key_whose_word_is_withdrawn_objects(self, library, root, monkeypatch, how):
        gate.attest_file(CodeFile(str(library), str(root)))
        forget(monkeypatch)
        key = keyring.current().signing
        ended = key._replace(revoked=1.0) if how == "revoked" else key._replace(expires=1.0)
        monkeypatch.setattr(keyring, "current", lambda: keyring.Keyring(None, trusted={key.id: ended}))
        assert not admit(library, root) and events.read_counters()[f"{how} key"] == 1

    def test_a_forged_record_objects(self, library, root, monkeypatch):
        gate.attest_file(CodeFile(str(library), str(root)))
        (record,) = root.glob(".safecache/records/*/*")
        content = bytearray(record.read_bytes())
        content[content.index(b"native_code")] ^= 1
        record.write_bytes(content)
        forget(monkeypatch)
        assert not admit(library, root) and events.read_counters()["bad seal"] == 1

    def test_a_record_that_cannot_be_read_may_object(self, library, root, monkeypatch):
        gate.attest_file(CodeFile(str(library), str(root)))
        forget(monkeypatch)

        def fail(*rest, **named):
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(entry_files, "read_unverified_entry", fail)
        with pytest.raises(Unreadable):
            gate.judge_file(CodeFile(str(library), str(root)))


def test_library_that_is_missing_fails_as_in_stock(root):
    path = str(root / "gone.so")
    assert gate.verify_load_path(CodeFile(path, str(root))) == (path, None)
    root.chmod(0o777)
    with pytest.raises(FileNotFoundError):
        gate.verify_load_path(CodeFile(path, str(root)))


@pytest.mark.parametrize("mode", [0o755, 0o777], ids=["private", "open"])
def test_library_that_cannot_be_read_is_not_loaded(library, root, monkeypatch, mode):
    """It may be readable again by the time that it is loaded, as when there are descriptors again."""
    gate.attest_file(CodeFile(str(library), str(root)))
    forget(monkeypatch)
    root.chmod(mode)

    def fail(*rest, **named):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(gate.opening, "digest_regular", fail)
    with pytest.raises(OSError, match="Too many open files"):
        gate.verify_load_path(CodeFile(str(library), str(root)))


def test_record_is_of_what_was_written_not_of_what_lies_there(library, root, monkeypatch):
    gate.attest_file(CodeFile(str(library), str(root)), content=b"what was written")
    forget(monkeypatch)
    assert not admit(library, root) and events.read_counters()["damaged"] == 1


def test_record_for_another_cache_is_the_one_that_is_kept_here(library, root):
    gate.attest_file(CodeFile(str(library), str(root)), content=b"what was written")
    (record,) = root.glob(".safecache/records/*/*")
    assert manifests.make_record(CodeFile(str(library)), b"what was written", {}) == record.read_bytes()


@pytest.mark.parametrize("opened", ["file", "directory"])
def test_copy_out_of_reach_holds_what_was_verified(library, root, opened):
    gate.attest_file(CodeFile(str(library), str(root)))
    (library if opened == "file" else root).chmod(0o777)
    path, content = gate.verify_load_path(CodeFile(str(library), str(root)))
    library.write_bytes(b"swapped")
    with open(path, "rb") as file:
        assert file.read() == content == b"\x7fELF code"
    assert path.endswith("abc.so")
    with pytest.raises(OSError), open(path, "r+b") as file:
        file.write(b"x")
        file.flush()


def replace_when_moved(monkeypatch, path, contents):
    """Have another writer put these there, one by one, each just before what was judged is moved away."""
    quarantine, left = entry_files.quarantine, list(contents)

    def replace_first(*args):
        if left:
            entry_files.replace(str(path), left.pop(0))
        return quarantine(*args)

    monkeypatch.setattr(entry_files, "quarantine", replace_first)


def quarantined(root):
    return [path.read_bytes() for path in root.glob(".safecache/quarantine/*.????????")]


def test_good_library_that_another_writer_puts_there_meanwhile_is_taken(library, root, monkeypatch):
    gate.attest_file(CodeFile(str(library), str(root)))
    good = library.read_bytes()
    library.write_bytes(b"\x7fELF evil")
    forget(monkeypatch)
    replace_when_moved(monkeypatch, library, [good])
    assert admit(library, root) and library.read_bytes() == good and quarantined(root) == []
    assert events.read_counters() == {"code sealed": 1, "code verified": 1}


def test_bad_library_that_another_writer_puts_there_meanwhile_is_moved_away_too(library, root, monkeypatch):
    replace_when_moved(monkeypatch, library, [b"another"])
    assert not admit(library, root) and quarantined(root) == [b"another"]


def test_bad_library_that_is_replaced_for_ever_is_left_and_not_loaded(library, root, monkeypatch):
    replace_when_moved(monkeypatch, library, [b"%d" % number for number in range(100)])
    assert admit(library, root) and quarantined(root) == []
    with pytest.raises(EntryRefusedError, match="no sealed record"):
        gate.verify_load_path(CodeFile(str(library), str(root)))


def test_link_that_another_writer_replaces_meanwhile_stays_replaced(library, root, monkeypatch):
    gate.attest_file(CodeFile(str(library), str(root)))
    good = library.read_bytes()
    library.unlink()
    library.symlink_to("/etc/passwd")
    forget(monkeypatch)
    replace_when_moved(monkeypatch, library, [good])
    assert admit(library, root) and library.read_bytes() == good and quarantined(root) == []
