"""What lies where a record should be is set aside: the library is built once more, not in every process."""

from __future__ import annotations

import os
import shutil

import pytest

from safecache.places.layout import CodeFile
from safecache.reporting import events
from safecache.store import attestations, entry_files, gate, manifests

CODE = b"\x7fELF code"


@pytest.fixture
def root(tmp_path):
    directory = tmp_path / "cache"
    (directory / "ab").mkdir(parents=True)
    return directory


@pytest.fixture
def library(root, monkeypatch):
    forget(monkeypatch)
    path = root / "ab" / "abc.so"
    path.write_bytes(CODE)
    gate.attest_file(CodeFile(str(path), str(root)))
    return path


def forget(monkeypatch):
    """As a new process would begin."""
    attestations._state.reset()
    events._state.reset()


def directory(path):
    path.mkdir()


def full_directory(path):
    (path / "more").mkdir(parents=True)
    (path / "more" / "file").write_bytes(b"x")


def fifo(path):
    os.mkfifo(path)


def link_to_nothing(path):
    path.symlink_to(path.with_name("nothing"))


def link_to_directory(path):
    path.symlink_to("/etc")


def link_to_itself(path):
    path.symlink_to(path.name)


def file(path):
    path.write_bytes(b"in the way")


def device(path):
    os.mknod(path, 0o600 | 0o020000, os.makedev(1, 3))


OF_RECORD = [directory, full_directory, fifo, link_to_nothing, link_to_directory, link_to_itself]
if os.geteuid() == 0:
    OF_RECORD.append(device)
# A link to a directory serves as one: some put parts of a cache elsewhere so.
OF_FOLDER = [file, fifo, link_to_nothing, link_to_itself]


def replace(path, obstacle):
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    obstacle(path)


def build_again(library, root, monkeypatch):
    """What the next process does, and whether the one after it takes what that has built."""
    forget(monkeypatch)
    assert not gate.quarantine_unattested(CodeFile(str(library), str(root)))
    library.write_bytes(CODE)
    kept = gate.attest_file(CodeFile(str(library), str(root)))
    forget(monkeypatch)
    return kept, gate.quarantine_unattested(CodeFile(str(library), str(root)))


@pytest.mark.parametrize("obstacle", OF_RECORD)
def test_obstacle_at_a_record_is_set_aside_once(library, root, monkeypatch, obstacle):
    place = root / os.path.relpath(manifests.record_path(CodeFile(str(library), str(root))), root)
    replace(place, obstacle)
    assert build_again(library, root, monkeypatch) == (True, True)
    assert place.is_file() and not place.is_symlink()


@pytest.mark.parametrize("obstacle", OF_FOLDER)
@pytest.mark.parametrize("levels", [1, 2], ids=["folder", "records"])
def test_obstacle_above_a_record_is_set_aside_once(library, root, monkeypatch, obstacle, levels):
    place = root / os.path.relpath(manifests.record_path(CodeFile(str(library), str(root))), root)
    replace(place.parents[levels - 1], obstacle)
    assert build_again(library, root, monkeypatch) == (True, True)


@pytest.mark.parametrize("obstacle", [directory, full_directory])
def test_directory_at_an_entry_is_set_aside(root, obstacle):
    path = root / "fxgraph" / "ab" / "fabc" / "entry"
    path.parent.mkdir(parents=True)
    obstacle(path)
    entry_files.publish(str(path), b"content", str(root))
    assert path.read_bytes() == b"content" and len(list(root.glob(".safecache/quarantine/entry.????????"))) == 1


def test_directory_that_cannot_be_set_aside_fails_as_it_did(root, monkeypatch):
    (root / "ab" / "entry").mkdir()
    monkeypatch.setattr(entry_files, "quarantine", lambda *rest: None)
    with pytest.raises(IsADirectoryError):
        entry_files.publish(str(root / "ab" / "entry"), b"content", str(root))
    assert os.listdir(root / "ab") == ["entry"]


def test_file_outside_of_the_cache_is_never_set_aside(root, tmp_path):
    (tmp_path / "file").write_bytes(b"mine")
    with pytest.raises(NotADirectoryError):
        entry_files.publish(str(tmp_path / "file" / "below" / "entry"), b"content", str(tmp_path / "file" / "below"))
    assert (tmp_path / "file").read_bytes() == b"mine"
