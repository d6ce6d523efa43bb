"""What torch writes by write_atomic, for whatever purpose, is written by our store."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import SOURCE

from safecache.built_code import generated
from safecache.fs import filesystem, folders, temporaries
from safecache.integrations import generated_code


def stock(*args, **kwargs):
    raise AssertionError("Only strings and byte arrays can be saved in the cache")


def write_atomic(*args, **kwargs):
    generated_code.write_atomic(stock, None, args, kwargs)


@pytest.mark.parametrize("as_path", [str, Path])
@pytest.mark.parametrize(("content", "expected"), [(b"\x00\xff", b"\x00\xff"), ("a\r\nä", "a\r\nä".encode())])
def test_file_holds_the_content(tmp_path, as_path, content, expected):
    write_atomic(as_path(tmp_path / "file"), content)
    assert (tmp_path / "file").read_bytes() == expected and os.listdir(tmp_path) == ["file"]


def test_name_alone_is_one_in_the_working_directory(tmp_path, monkeypatch, settings):
    settings(SAFECACHE_FSYNC="always")
    monkeypatch.chdir(tmp_path)
    write_atomic("file", b"content")
    assert (tmp_path / "file").read_bytes() == b"content"


@pytest.mark.parametrize(("utf_8", "expected"), [(False, b"\xe4"), (True, b"\xc3\xa4")])
def test_text_is_encoded_as_the_locale_says_unless_torch_wants_utf_8(tmp_path, monkeypatch, utf_8, expected):
    monkeypatch.setattr(generated.locale, "getpreferredencoding", lambda do_setlocale: "ISO-8859-1")
    write_atomic(tmp_path / "file", "ä", encode_utf_8=utf_8)
    assert (tmp_path / "file").read_bytes() == expected


def test_directories_are_made_if_torch_says_so_and_not_else(tmp_path):
    path = tmp_path / "ab" / "cd" / "file"
    with pytest.raises(FileNotFoundError) as caught:
        write_atomic(path, b"content")
    assert caught.value.filename.startswith(str(path.parent)) and os.listdir(tmp_path) == []
    write_atomic(path, b"content", True)
    assert path.read_bytes() == b"content"


def test_file_in_place_of_the_directory_is_an_error_and_stays(tmp_path):
    (tmp_path / "ab").write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        write_atomic(tmp_path / "ab" / "file", b"content", make_dirs=True)
    assert (tmp_path / "ab").read_bytes() == b"mine"


def test_what_is_no_content_is_left_to_torch(tmp_path):
    with pytest.raises(AssertionError, match="Only strings"):
        write_atomic(tmp_path / "file", 1)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("operation", ["open", "write", "close", "rename"])
def test_what_the_file_system_says_is_raised_with_nothing_left(tmp_path, monkeypatch, operation):
    (tmp_path / "file").write_bytes(b"old")

    def fail(path, *rest, **named):
        if operation != "open" or str(path).endswith(".tmp"):
            raise OSError(errno.ENOSPC, "full")
        return open_(path, *rest, **named)

    open_ = filesystem.open

    with monkeypatch.context() as patch:
        patch.setattr(filesystem, operation, fail)
        with pytest.raises(OSError, match="full"):
            write_atomic(tmp_path / "file", b"new")
    assert os.listdir(tmp_path) == ["file"] and (tmp_path / "file").read_bytes() == b"old"


@pytest.mark.parametrize(("chosen", "synced"), [("always", [".tmp", "cd", "ab", "top"]), ("never", [])])
def test_disk_is_waited_for_as_it_is_set(tmp_path, settings, monkeypatch, chosen, synced):
    settings(SAFECACHE_FSYNC=chosen)
    top = tmp_path / "top"
    top.mkdir()
    seen, sync = [], filesystem.fsync

    def note(descriptor):
        seen.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
        sync(descriptor)

    monkeypatch.setattr(filesystem, "fsync", note)
    write_atomic(top / "ab" / "cd" / "file", b"content", make_dirs=True)
    assert sorted(os.path.splitext(name)[1] or name for name in seen) == sorted(synced)


def test_what_a_dead_torch_has_left_is_removed(tmp_path):
    left = tmp_path / ".123.456.tmp"
    left.touch()
    os.utime(left, (0, 0))
    write_atomic(tmp_path / "file", b"content")
    assert os.listdir(tmp_path) == ["file"]


WRITE = """
import os, sys
from safecache.integrations import generated_code
assert os.getpid() == 1
directory, letter = sys.argv[1:]
for number in range(400):
    path = os.path.join(directory, str(number % 4))
    generated_code.write_atomic(None, None, (path, letter * (50_000 + number)), {})
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for namespaces of process ids")
def test_two_containers_on_one_volume_do_not_tear_each_others_files(tmp_path):
    """Both processes have the pid 1, and without randomised addresses the same thread id too."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, [SOURCE, *sys.path[1:]]))}
    command = ["setarch", "-R", "unshare", "--pid", "--fork", sys.executable, "-S", "-c", WRITE, str(tmp_path)]
    writers = [subprocess.Popen([*command, letter], env=environment, stderr=subprocess.PIPE) for letter in "ab"]
    torn = []
    while any(writer.poll() is None for writer in writers):
        for path in tmp_path.glob("[0-9]"):
            content = path.read_bytes()
            if len(content) < 50_000 or len(set(content)) != 1:
                torn.append(path.name)
    assert [writer.communicate()[1] for writer in writers] == [b"", b""] and not torn
    assert [writer.returncode for writer in writers] == [0, 0]
    assert sorted(os.listdir(tmp_path)) == ["0", "1", "2", "3"]
    with folders.open_subdirectory(str(tmp_path)) as folder:
        assert temporaries.reap(folder) == 0
