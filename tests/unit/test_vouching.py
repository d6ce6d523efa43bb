"""Compiled code is taken if this process built it or a sealed record names its digest, and from no other CPU."""

from __future__ import annotations

import os

import pytest

from safecache import config, cpu, events, keyring, records, store, vouching
from safecache.errors import EntryRefusedError
from safecache.seal import Kind


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
    monkeypatch.setattr(vouching, "_known", {})
    monkeypatch.setattr(vouching, "_judged", {})


def admit(path, root):
    is_there = vouching.admit_build(str(path), str(root))
    assert is_there == path.exists()
    return is_there


def test_what_this_process_built_is_taken(library, root):
    vouching.keep(str(library), str(root))
    assert admit(library, root) and vouching.admit_code(str(library), str(root)) == (str(library), None)


def test_record_vouches_for_it_in_the_next_process(library, root, monkeypatch):
    vouching.keep(str(library), str(root))
    forget(monkeypatch)
    assert admit(library, root)
    assert events.counters() == {"code sealed": 1, "code verified": 1}


def test_without_a_record_it_is_moved_away(library, root, monkeypatch):
    assert not admit(library, root) and events.counters()["unsealed"] == 1
    library.write_bytes(b"\x7fELF code")
    with pytest.raises(EntryRefusedError, match="no sealed record"):
        vouching.admit_code(str(library), str(root))


@pytest.mark.parametrize("how", ["longer", "flipped", "shorter", "empty"])
def test_content_that_changed_since_is_refused(library, root, monkeypatch, how):
    vouching.keep(str(library), str(root))
    good = library.read_bytes()
    library.write_bytes({"longer": good + b"x", "flipped": good[:-1] + b"X", "shorter": good[:-1], "empty": b""}[how])
    forget(monkeypatch)
    assert not admit(library, root) and events.counters()["damaged"] == 1


def test_record_of_one_file_does_not_vouch_for_another(library, root, monkeypatch):
    vouching.keep(str(library), str(root))
    other = library.with_name("other.so")
    other.write_bytes(library.read_bytes())
    record = records.path_of("other.so", str(root), Kind.NATIVE_CODE)
    os.makedirs(os.path.dirname(record), exist_ok=True)
    os.link(records.path_of(library.name, str(root), Kind.NATIVE_CODE), record)
    forget(monkeypatch)
    assert not admit(other, root) and events.counters()["other cache key"] == 1


def test_record_of_another_key_does_not_vouch(library, root, monkeypatch, tmp_path):
    vouching.keep(str(library), str(root))
    forget(monkeypatch)
    key = tmp_path / "key"
    key.write_bytes(b"k" * 32)
    key.chmod(0o600)
    monkeypatch.setenv("SAFECACHE_KEY_FILE", str(key))
    config.reload()
    assert not admit(library, root) and events.counters()["unknown key"] == 1


@pytest.mark.parametrize("damage", [lambda content: content[:-1], lambda content: b"", lambda content: b"x" * 300])
def test_damaged_record_does_not_vouch(library, root, monkeypatch, damage):
    vouching.keep(str(library), str(root))
    with open(records.path_of(library.name, str(root), Kind.NATIVE_CODE), "r+b") as file:
        content = damage(file.read())
        file.seek(0)
        file.truncate()
        file.write(content)
    forget(monkeypatch)
    assert not admit(library, root)


def test_code_for_a_cpu_that_has_more_is_refused(library, root, monkeypatch):
    monkeypatch.setattr(cpu, "instructions", lambda: "avx2 avx512f x86_64")
    vouching.keep(str(library), str(root))
    forget(monkeypatch)
    monkeypatch.setattr(cpu, "instructions", lambda: "avx2 x86_64")
    assert not admit(library, root) and events.counters()["other CPU"] == 1


def test_code_for_a_cpu_that_has_less_is_taken(library, root, monkeypatch):
    monkeypatch.setattr(cpu, "instructions", lambda: "avx2 x86_64")
    vouching.keep(str(library), str(root))
    forget(monkeypatch)
    monkeypatch.setattr(cpu, "instructions", lambda: "avx2 avx512f x86_64")
    assert admit(library, root)


def test_this_cpu_is_described_by_its_machine_and_instructions():
    words = cpu.instructions().split()
    assert os.uname().machine in words and len(words) > 3


class TestLargeFile:
    """One that would take long to read at every start."""

    @pytest.fixture(autouse=True)
    def large(self, monkeypatch):
        monkeypatch.setattr(vouching, "_LARGE", 4)

    def test_is_not_read_again_while_the_kernel_says_it_is_the_same(self, library, root, monkeypatch):
        vouching.keep(str(library), str(root))
        forget(monkeypatch)
        monkeypatch.setattr(vouching.files, "digest_regular", lambda *rest, **named: pytest.fail("read again"))
        assert admit(library, root)

    def test_is_read_when_it_was_written_since_even_if_its_times_say_otherwise(self, library, root, monkeypatch):
        vouching.keep(str(library), str(root))
        forget(monkeypatch)
        before = library.stat()
        library.write_bytes(b"\x7fELF evil")
        os.utime(library, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert not admit(library, root)

    def test_copy_is_read_and_taken(self, library, root, monkeypatch):
        vouching.keep(str(library), str(root))
        forget(monkeypatch)
        content = library.read_bytes()
        library.unlink()
        library.write_bytes(content)
        assert admit(library, root) and events.counters()["code verified"] == 1

    @pytest.mark.parametrize("mode", [0o644, 0o666], ids=["private", "open"])
    def test_is_read_each_time_where_others_could_have_written_in_the_same_tick(self, library, root, monkeypatch, mode):
        monkeypatch.setattr(vouching.filesystem, "identity", lambda status: [0])
        library.chmod(mode)
        vouching.keep(str(library), str(root))
        library.write_bytes(b"\x7fELF evil")
        forget(monkeypatch)
        assert admit(library, root) is (mode == 0o644)

    def test_is_loaded_from_a_copy_where_others_could_write(self, library, root, monkeypatch):
        vouching.keep(str(library), str(root))
        library.chmod(0o666)
        vouching.keep(str(library), str(root))
        forget(monkeypatch)
        path, content = vouching.admit_code(str(library), str(root))
        assert path != str(library) and content == library.read_bytes()


def test_without_a_key_it_is_taken_if_nobody_else_could_have_written_it(library, root, monkeypatch):
    """Or what a compile worker has just built could not be used."""
    monkeypatch.setattr(keyring, "current", lambda: keyring.Keyring(None, problem="no key today"))
    assert vouching.keep(str(library), str(root)), "what cannot be sealed is no failure"
    assert vouching.record_of(str(library), b"code", Kind.NATIVE_CODE, {}) is None
    forget(monkeypatch)
    assert admit(library, root)
    library.chmod(0o666)
    forget(monkeypatch)
    assert not admit(library, root)


def test_library_that_is_missing_fails_as_in_stock(root):
    path = str(root / "gone.so")
    assert vouching.admit_code(path, str(root)) == (path, None)
    root.chmod(0o777)
    with pytest.raises(FileNotFoundError):
        vouching.admit_code(path, str(root))


def test_record_is_of_what_was_written_not_of_what_lies_there(library, root, monkeypatch):
    vouching.keep(str(library), str(root), content=b"what was written")
    forget(monkeypatch)
    assert not admit(library, root) and events.counters()["damaged"] == 1


def test_record_for_another_cache_is_the_one_that_is_kept_here(library, root):
    vouching.keep(str(library), str(root), content=b"what was written")
    (record,) = root.glob(".safecache/records/*/*")
    assert vouching.record_of(str(library), b"what was written", Kind.NATIVE_CODE, {}) == record.read_bytes()


@pytest.mark.parametrize("opened", ["file", "directory"])
def test_copy_out_of_reach_holds_what_was_verified(library, root, opened):
    vouching.keep(str(library), str(root))
    (library if opened == "file" else root).chmod(0o777)
    path, content = vouching.admit_code(str(library), str(root))
    library.write_bytes(b"swapped")
    with open(path, "rb") as file:
        assert file.read() == content == b"\x7fELF code"
    assert path.endswith("abc.so")
    with pytest.raises(OSError), open(path, "r+b") as file:
        file.write(b"x")
        file.flush()


def replace_when_moved(monkeypatch, path, contents):
    """Have another writer put these there, one by one, each just before what was judged is moved away."""
    quarantine, left = store.quarantine, list(contents)

    def replace_first(*args):
        if left:
            store.replace(str(path), left.pop(0))
        return quarantine(*args)

    monkeypatch.setattr(store, "quarantine", replace_first)


def quarantined(root):
    return [path.read_bytes() for path in root.glob(".safecache/quarantine/*.????????")]


@pytest.mark.parametrize("large", [4, 1 << 20], ids=["large", "small"])
def test_good_library_that_another_writer_puts_there_meanwhile_is_taken(library, root, monkeypatch, large):
    monkeypatch.setattr(vouching, "_LARGE", large)
    vouching.keep(str(library), str(root))
    good = library.read_bytes()
    library.write_bytes(b"\x7fELF evil")
    forget(monkeypatch)
    replace_when_moved(monkeypatch, library, [good])
    assert admit(library, root) and library.read_bytes() == good and quarantined(root) == []
    assert events.counters() == {"code sealed": 1, "code verified": 1}


def test_bad_library_that_another_writer_puts_there_meanwhile_is_moved_away_too(library, root, monkeypatch):
    replace_when_moved(monkeypatch, library, [b"another"])
    assert not admit(library, root) and quarantined(root) == [b"another"]


def test_bad_library_that_is_replaced_for_ever_is_left_and_not_loaded(library, root, monkeypatch):
    replace_when_moved(monkeypatch, library, [b"%d" % number for number in range(100)])
    assert admit(library, root) and quarantined(root) == []
    with pytest.raises(EntryRefusedError, match="no sealed record"):
        vouching.admit_code(str(library), str(root))


def test_link_that_another_writer_replaces_meanwhile_stays_replaced(library, root, monkeypatch):
    vouching.keep(str(library), str(root))
    good = library.read_bytes()
    library.unlink()
    library.symlink_to("/etc/passwd")
    forget(monkeypatch)
    replace_when_moved(monkeypatch, library, [good])
    assert admit(library, root) and library.read_bytes() == good and quarantined(root) == []
