"""A private directory is one that others can neither enter nor rename, wherever TMPDIR points."""

from __future__ import annotations

import builtins
import errno
import os
import stat
import tempfile

import pytest
from conftest import python

from safecache.fs import ownership, private_directory


@pytest.fixture(autouse=True)
def afresh(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", None)


def use(monkeypatch, directory, mode):
    directory.chmod(mode)
    monkeypatch.setenv("TMPDIR", str(directory))


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o1777], ids="{:04o}".format)
def test_lies_in_the_temporary_directory_if_that_will_do(monkeypatch, tmp_path, mode):
    use(monkeypatch, tmp_path, mode)
    with private_directory.create_temporary() as directory:
        assert os.path.dirname(directory) == str(tmp_path) and stat.S_IMODE(os.stat(directory).st_mode) == 0o700
        (tmp_path / os.path.basename(directory) / "file").touch()
    assert list(tmp_path.iterdir()) == []


def test_lies_elsewhere_if_not(monkeypatch, tmp_path):
    use(monkeypatch, tmp_path, 0o777)
    with private_directory.create_temporary() as directory:
        assert ownership.find_exposure(directory) is None and not directory.startswith(str(tmp_path))
    assert list(tmp_path.iterdir()) == [] and not os.path.exists(directory)


def test_lies_nowhere_if_there_is_no_place_and_says_why(monkeypatch, tmp_path):
    use(monkeypatch, tmp_path, 0o777)
    monkeypatch.setattr(private_directory, "_OTHER_PARENTS", (str(tmp_path / "absent"),))
    with pytest.raises(PermissionError, match=f"{tmp_path} has mode 0777"), private_directory.create_temporary():
        pass
    assert list(tmp_path.iterdir()) == []


FORK = """
import os
from safecache.fs import private_directory
ours = private_directory.get_process_directory()
assert private_directory.get_process_directory() == ours
child = os.fork()
if child == 0:
    theirs = private_directory.get_process_directory()
    assert theirs != ours and os.path.isdir(theirs)
    raise SystemExit
assert os.waitpid(child, 0)[1] == 0 and os.path.isdir(ours)
"""


def test_is_one_for_a_process_and_is_removed_with_it(tmp_path):
    done = python(FORK, env={"TMPDIR": str(tmp_path)})
    assert done.returncode == 0 and list(tmp_path.iterdir()) == [], done


def test_file_is_written_to_memory_where_the_temporary_directory_is_full(monkeypatch, tmp_path):
    use(monkeypatch, tmp_path, 0o700)
    private_directory._make_for_process.cache_clear()
    real = open

    def full(path, *args, **kwargs):
        if path.startswith(str(tmp_path)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        return real(path, *args, **kwargs)

    monkeypatch.setattr(builtins, "open", full)
    path = private_directory.write("name.json", b"content")
    monkeypatch.undo()
    with open(path, "rb") as file:
        assert file.read() == b"content"
    assert os.path.basename(path) == "name.json" and not path.startswith(str(tmp_path))
    left = [os.listdir(directory) for directory in tmp_path.iterdir()]
    assert left == [[private_directory._RECORD]], "nothing is left where it failed"
    private_directory._make_for_process.cache_clear()
