"""The files of a compiled kernel have one record, that of their list: it attests each of them, and no other."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest
from helpers import key_cases
from helpers.fresh import forget_kernels

from safecache.built_code import triton_files
from safecache.fs import filesystem
from safecache.places import layout
from safecache.places.layout import CodeFile
from safecache.reporting import events
from safecache.reporting.kinds import Kind
from safecache.signing import key_files, keyring
from safecache.store import gate, manifests
from safecache.upkeep import audit

NAMES = ("k.ttir", "k.cubin", "k.json")
LIST = "__grp__k.json"
ONE, OTHER = "A" * 52, "B" * 52


@pytest.fixture
def root(tmp_path):
    return tmp_path / "cache"


def compile_kernel(directory, version="one", *, ends=None):
    """As triton.compile() does; raises what ``ends`` calls, if anything, in place of writing the metadata."""
    with triton_files.kernel_scope():
        assert triton_files.get_group(str(directory), "k.json") is None
        group = {}
        for name in NAMES:
            if ends is not None and name == "k.json":
                ends()
            group[name] = triton_files.put(str(directory), name, f"{name} {version} {directory.name}".encode())
        triton_files.put(str(directory), LIST, json.dumps({"child_paths": group}).encode())
    forget_kernels()


def records(root):
    return sorted(path.name for path in root.glob(".safecache/records/*/*"))


def record_of(path):
    return Path(manifests.record_path(CodeFile(str(path), str(path.parent.parent), Kind.KERNEL)))


def attested(path):
    forget_kernels()
    return gate.is_attested(CodeFile(str(path), str(path.parent.parent), Kind.KERNEL))


def hits(directory):
    forget_kernels()
    return triton_files.get_group(str(directory), "k.json") is not None


def refused():
    return {
        name: count for name, count in events.read_counters().items() if name in ("damaged", "unsealed", "quarantined")
    }


def test_compile_writes_one_record_that_attests_each_file(root):
    compile_kernel(root / ONE)
    assert records(root) == [record_of(root / ONE / LIST).name]
    assert hits(root / ONE) and all(attested(root / ONE / name) for name in (*NAMES, LIST))
    found = audit.audit([], layout.walk_code(str(root)))
    assert found.refused == [] and found.outcomes == {"code verified": len(NAMES) + 1}
    assert not refused()


def test_moved_cache_keeps_it(root, tmp_path):
    compile_kernel(root / ONE)
    shutil.move(root, tmp_path / "elsewhere")
    assert attested(tmp_path / "elsewhere" / ONE / "k.cubin") and hits(tmp_path / "elsewhere" / ONE)


@pytest.mark.parametrize("name", NAMES)
def test_file_of_another_group_is_refused_by_name(root, caplog, name):
    compile_kernel(root / ONE)
    compile_kernel(root / OTHER)
    shutil.copyfile(root / OTHER / name, root / ONE / name)
    assert not attested(root / ONE / name)
    assert not hits(root / ONE) and hits(root / OTHER)
    assert refused() == {"damaged": 1, "quarantined": 1} and name in caplog.text


def test_missing_file_is_a_miss_and_nothing_is_refused_for_it(root):
    compile_kernel(root / ONE)
    (root / ONE / "k.cubin").unlink()
    assert not hits(root / ONE) and not refused()
    (root / ONE / LIST).unlink()
    compile_kernel(root / ONE, "two")
    assert hits(root / ONE)


@pytest.mark.parametrize("name", ["k.so", "k.llir", "other.cubin", "__grp__other.json"])
def test_added_file_is_not_attested(root, name):
    compile_kernel(root / ONE)
    (root / ONE / name).write_bytes(b"planted")
    assert not attested(root / ONE / name) and hits(root / ONE)


def cut(record):
    os.truncate(record, record.stat().st_size // 2)


def flip(record):
    content = bytearray(record.read_bytes())
    content[10] ^= 1
    record.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "expected"), [(cut, {"unsealed": 1}), (flip, {"damaged": 1, "quarantined": 1})], ids=["cut", "flip"]
)
def test_damaged_record_attests_no_file(root, damage, expected):
    compile_kernel(root / ONE)
    damage(record_of(root / ONE / LIST))
    assert not any(attested(root / ONE / name) for name in (*NAMES, LIST))
    assert not hits(root / ONE) and refused() == expected
    compile_kernel(root / ONE, "two")
    assert hits(root / ONE)


@pytest.mark.parametrize("name", [*NAMES, LIST])
def test_record_of_another_group_attests_no_file(root, name):
    compile_kernel(root / ONE)
    compile_kernel(root / OTHER)
    shutil.copyfile(root / OTHER / name, root / ONE / name)
    for place in (LIST, name):  # as the group's, and as the file's own
        record_of(root / ONE / place).parent.mkdir(exist_ok=True)
        shutil.copyfile(record_of(root / OTHER / LIST), record_of(root / ONE / place))
        assert not attested(root / ONE / name)


def test_group_s_record_in_the_place_of_a_file_s_own_attests_what_it_states(root):
    compile_kernel(root / ONE)
    cubin = root / ONE / "k.cubin"
    own = record_of(cubin)
    own.parent.mkdir(exist_ok=True)
    shutil.copyfile(record_of(root / ONE / LIST), own)
    record_of(root / ONE / LIST).unlink()
    assert attested(cubin)
    cubin.write_bytes(b"planted")
    assert not attested(cubin)


def test_record_of_a_stranger_attests_no_file(root, settings, tmp_path):
    key_files.save(str(tmp_path / "private"), key_cases.PRIVATE)
    settings(SAFECACHE_KEY_FILE=tmp_path / "private")
    compile_kernel(root / ONE)
    settings(SAFECACHE_KEY_FILE="")
    keyring.renew()
    assert not any(attested(root / ONE / name) for name in NAMES)
    key_cases.put(key_cases.PUBLIC)
    keyring.renew()
    assert all(attested(root / ONE / name) for name in NAMES)


def test_private_trust_is_contradicted_by_a_stranger_s_record(root, settings, tmp_path):
    key_files.save(str(tmp_path / "private"), key_cases.PRIVATE)
    settings(SAFECACHE_KEY_FILE=tmp_path / "private")
    compile_kernel(root / ONE)
    settings(SAFECACHE_KEY_FILE="", SAFECACHE_TRUST="private")
    keyring.renew()
    cubin = root / ONE / "k.cubin"
    assert attested(cubin)
    cubin.write_bytes(b"damaged")
    assert not attested(cubin)


def test_file_of_an_older_safecache_has_a_record_of_its_own_and_is_replaced_in_silence(root):
    for name in NAMES:
        triton_files.put(str(root / ONE), name, b"old")
    assert len(records(root)) == len(NAMES) and all(attested(root / ONE / name) for name in NAMES)
    compile_kernel(root / ONE)
    assert hits(root / ONE) and all(attested(root / ONE / name) for name in NAMES)
    assert not refused()


def fail():
    raise ValueError("of the compiler")


def test_files_of_a_compile_that_fails_have_records_of_their_own(root):
    with pytest.raises(ValueError, match="of the compiler"):
        compile_kernel(root / ONE, ends=fail)
    forget_kernels()
    assert sorted(records(root)) == sorted(record_of(root / ONE / name).name for name in NAMES[:2])
    assert all(attested(root / ONE / name) for name in NAMES[:2])


def test_file_that_could_not_be_written_gets_no_record_after_a_compile_that_fails(root, monkeypatch):
    def fail_to_rename(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(filesystem, "rename", fail_to_rename)
    with pytest.raises(ValueError, match="of the compiler"):
        compile_kernel(root / ONE, ends=fail)
    assert events.read_counters()["unwritable"] == len(NAMES[:2]) and not records(root)


def test_error_of_a_compile_comes_before_that_of_its_records(root, settings):
    settings(SAFECACHE_STRICT="1")

    def fail_with_the_records():
        shutil.rmtree(root / ".safecache", ignore_errors=True)
        (root / ".safecache").write_text("in the way")
        fail()

    with pytest.raises(ValueError, match="of the compiler"):
        compile_kernel(root / ONE, ends=fail_with_the_records)


def test_files_beside_the_list_of_another_process_have_records_of_their_own(root):
    """Until our list replaces it, its record states other files."""
    with triton_files.kernel_scope():
        assert triton_files.get_group(str(root / ONE), "k.json") is None
        triton_files.put(str(root / ONE), "k.ttir", b"first")
        (root / ONE / LIST).write_text("{}")
        triton_files.put(str(root / ONE), "k.cubin", b"second")
        assert records(root) == [record_of(root / ONE / "k.cubin").name]


@pytest.mark.parametrize("name", ["k.autotune.json", "cuda_utils.so", "other.cubin"])
def test_file_that_is_found_alone_has_its_record_at_once(root, name):
    with triton_files.kernel_scope():
        assert triton_files.get_group(str(root / ONE), "k.json") is None
        triton_files.put(str(root / ONE), name, b"alone")
        assert records(root) == [record_of(root / ONE / name).name]
    assert attested(root / ONE / name)


def test_host_without_a_key_that_seals_leaves_the_record_that_others_trust(root, settings, tmp_path):
    key_files.save(str(tmp_path / "private"), key_cases.PRIVATE)
    settings(SAFECACHE_KEY_FILE=tmp_path / "private")
    compile_kernel(root / ONE)
    settings(SAFECACHE_KEY_FILE=key_cases.put(key_cases.PUBLIC))
    keyring.renew()
    before = record_of(root / ONE / LIST).read_bytes()
    for name in (*NAMES, LIST):
        triton_files.put(str(root / ONE), name, (root / ONE / name).read_bytes())
    assert record_of(root / ONE / LIST).read_bytes() == before and len(records(root)) == 1
    assert hits(root / ONE)


def test_quarantined_file_is_restored_if_the_record_of_its_group_attests_it(root):
    compile_kernel(root / ONE)
    content = (root / ONE / "k.cubin").read_bytes()
    (root / ONE / "k.cubin").write_bytes(b"damaged")
    assert not hits(root / ONE)
    (item,) = audit.list_quarantined([str(root)])
    assert audit.find_objection(item) == "its digest is not the one that was sealed"
    (root / ".safecache" / "quarantine" / item.name).write_bytes(content)
    assert audit.restore_quarantined(item) == str(root / ONE / "k.cubin") and hits(root / ONE)
