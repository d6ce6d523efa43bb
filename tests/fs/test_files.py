"""What is read, digested or copied is the very file that was checked, and a copy is a new file or none."""

from __future__ import annotations

import hashlib
import os

import pytest

from safecache.fs import filesystem, opening


def anything(status):
    """Let every file pass."""


def refuse(status):
    raise PermissionError("refused")


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "source"
    path.write_bytes(os.urandom(3_000_000))
    return path


def test_copy_and_digest_of_a_large_file_are_of_all_of_it(source, tmp_path):
    expected = hashlib.sha256(source.read_bytes()).digest()
    assert opening.digest_regular(str(source), anything) == expected
    assert opening.copy_regular(str(source), anything, str(tmp_path / "copy")) == expected
    assert (tmp_path / "copy").read_bytes() == source.read_bytes()


@pytest.mark.parametrize("limit", [0, 1, 2_999_999, 3_000_000, 3_000_001])
def test_no_more_is_read_than_is_allowed(source, limit):
    assert opening.read_regular(str(source), anything, limit=limit) == source.read_bytes()[:limit]


def test_file_that_grows_while_it_is_read_is_read_to_its_end(source, monkeypatch):
    read, grown = filesystem.read, []

    def grow(descriptor, size):
        content = read(descriptor, size)
        if not grown:
            grown.append(True)
            with source.open("ab") as file:
                file.write(b"more")
        return content

    monkeypatch.setattr(filesystem, "read", grow)
    assert opening.read_regular(str(source), anything)[-4:] == b"more"


@pytest.mark.parametrize("make", [os.link, os.symlink], ids=lambda make: make.__name__)
def test_copy_does_not_write_into_what_lies_there(source, tmp_path, make):
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    make(victim, tmp_path / "copy")
    with pytest.raises(FileExistsError):
        opening.copy_regular(str(source), anything, str(tmp_path / "copy"))
    assert victim.read_bytes() == b"mine" and (tmp_path / "copy").read_bytes() == b"mine"


def test_what_is_refused_is_neither_read_nor_copied(source, tmp_path, monkeypatch):
    monkeypatch.setattr(filesystem, "read", None)
    for action in (opening.read_regular, opening.digest_regular):
        with pytest.raises(PermissionError, match="refused"):
            action(str(source), refuse)
    with pytest.raises(PermissionError, match="refused"):
        opening.copy_regular(str(source), refuse, str(tmp_path / "copy"))
    assert not (tmp_path / "copy").exists()
