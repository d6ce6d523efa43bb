"""Records travel to another cache as they are; one that cannot be written is reported with the variable that helps."""

from __future__ import annotations

import errno
import logging

import pytest

from safecache.fs import filesystem
from safecache.places.layout import CodeFile
from safecache.reporting.kinds import Kind
from safecache.store import gate, manifests
from safecache.tiers import directory_faults, fallback


@pytest.fixture
def library(tmp_path):
    path = tmp_path / "cache" / "ab" / "abc.so"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"\x7fELF")
    return path


@pytest.fixture
def other(tmp_path):
    (tmp_path / "other").mkdir()
    return str(tmp_path / "other")


def copy(library, other, kind=Kind.NATIVE_CODE):
    record, place = of(library, library.parents[1], kind), CodeFile(str(library), other, kind)
    return record is not None and manifests.publish(manifests.record_path(place), record, other, "a record", kind)


def of(library, root, kind=Kind.NATIVE_CODE):
    return manifests.read_unverified_record(CodeFile(str(library), str(root), kind))


def fail(monkeypatch, name, number):
    def failing(*args, **kwargs):
        raise OSError(number, errno.errorcode[number])

    monkeypatch.setattr(filesystem, name, failing)


def test_record_is_copied_as_it_is(library, other):
    gate.attest_file(CodeFile(str(library), str(library.parents[1])))
    assert copy(library, other)
    assert of(library, other) == of(library, library.parents[1]) is not None


def test_there_is_nothing_to_copy_of_a_file_without_one(library, other):
    assert not copy(library, other) and of(library, other) is None


def test_record_that_cannot_be_read_is_not_copied(library, other, monkeypatch):
    gate.attest_file(CodeFile(str(library), str(library.parents[1])))
    monkeypatch.setattr(filesystem, "sleep", lambda seconds: None)
    with monkeypatch.context() as patch:
        fail(patch, "lstat", errno.EIO)
        with pytest.raises(directory_faults.Unreadable):
            copy(library, other)
    assert of(library, other) is None


@pytest.mark.parametrize("kind", [Kind.NATIVE_CODE, Kind.KERNEL], ids=lambda kind: kind.value)
@pytest.mark.parametrize(
    ("number", "replaced"), [(errno.ENOSPC, True), (errno.ENOSPC, False), (errno.ENAMETOOLONG, True)]
)
def test_record_that_cannot_be_written_is_reported_unless_another_directory_is_used_from_now_on(
    library, other, monkeypatch, caplog, kind, number, replaced
):
    caplog.set_level(logging.WARNING, logger="safecache")
    gate.attest_file(CodeFile(str(library), str(library.parents[1]), kind))
    monkeypatch.setattr(fallback, "replace_if_failed", lambda error: replaced)
    fail(monkeypatch, "write", number)
    assert not copy(library, other, kind)
    if kind is Kind.NATIVE_CODE and replaced and number == errno.ENOSPC:
        assert caplog.messages == []
    else:
        (said,) = caplog.messages
        assert ("TRITON_CACHE_DIR" in said) is (kind is Kind.KERNEL)
        assert ("TORCHINDUCTOR_CACHE_DIR" in said) is (kind is Kind.NATIVE_CODE)
