"""What a directory's fault is told from, and what is none of its."""

from __future__ import annotations

import builtins
import errno
import os
import subprocess

import pytest

from safecache.reporting.kinds import Reason
from safecache.tiers import directory_faults

CACHE = "/cache"
FULL = os.strerror(errno.ENOSPC)
DENIED = os.strerror(errno.EACCES)
ABSENT = os.strerror(errno.ENOENT)


def error_of(number, *names):
    return OSError(number, os.strerror(number), *names)


class Timeout(TimeoutError):
    lock_file = f"{CACHE}/locks/x.lock"


def caused_by(error):
    outer = RuntimeError("wrapped")
    outer.__cause__ = error
    return outer


FAULTS = {
    "file-in-it": error_of(errno.EACCES, f"{CACHE}/ab/x.py"),
    "the-directory-itself": error_of(errno.EEXIST, CACHE),
    "target-of-a-rename": error_of(errno.EXDEV, "/tmp/x", None, f"{CACHE}/ab/x.py"),
    "write-that-names-no-file": error_of(errno.ENOSPC),
    "cause-of-another": caused_by(error_of(errno.EIO)),
    "linker": RuntimeError(f"/usr/bin/ld: final link failed: {FULL}"),
    "compiler-that-cannot-write": RuntimeError(f"Fatal error: can't create {CACHE}/ab/x.o: {DENIED}"),
    "clang": RuntimeError(f"error: unable to open output file '{CACHE}/ab/x.o': '{DENIED}'"),
    "source-that-is-gone": RuntimeError(f"cc1plus: fatal error: {CACHE}/ab/x.main.cpp: {ABSENT}"),
    "library-that-is-gone": OSError(f"{CACHE}/ab/x.so: cannot open shared object file: {ABSENT}"),
}
OTHERS = {
    "file-elsewhere": error_of(errno.EACCES, "/etc/x"),
    "full-disk-elsewhere": error_of(errno.ENOSPC, "/data/x"),
    "neighbour": error_of(errno.EACCES, f"{CACHE}-of-another/x"),
    "no-compiler": error_of(errno.ENOENT, "g++"),
    "no-name": error_of(errno.ECHILD),
    "no-more-descriptors": error_of(errno.EMFILE, f"{CACHE}/x"),
    "no-more-of-the-host": error_of(errno.ENFILE, f"{CACHE}/x"),
    "header": RuntimeError(f"{CACHE}/ab/x.cpp:3:10: fatal error: missing.h: {ABSENT}"),
    "syntax": RuntimeError(f"{CACHE}/ab/x.cpp:3:10: error: expected ';'"),
    "exit-status": subprocess.CalledProcessError(1, ["g++", f"{CACHE}/ab/x.cpp"]),
}


@pytest.mark.parametrize("error", FAULTS.values(), ids=FAULTS)
def test_fault_is_told_from_the_error(error):
    fault = directory_faults.find(error, CACHE)
    assert fault is not None and fault.reason is Reason.UNUSABLE_DIRECTORY and CACHE in fault.text


@pytest.mark.parametrize("error", OTHERS.values(), ids=OTHERS)
def test_error_that_is_about_something_else_is_no_fault(error):
    assert directory_faults.find(error, CACHE) is None


def test_lock_that_was_not_granted_is_named(settings):
    fault = directory_faults.find(Timeout(), CACHE)
    assert fault == (Reason.LOCK_HELD, f"the lock {CACHE}/locks/x.lock was not granted in time")


def test_directory_that_can_be_used_is_made_and_left_empty(tmp_path):
    directory = tmp_path / "a" / "b"
    assert directory_faults.probe(str(directory)) is None
    assert list(directory.iterdir()) == []


def test_file_and_what_lies_below_it_are_no_directories(tmp_path):
    file = tmp_path / "file"
    file.touch(mode=0o777)
    for path in (file, file / "cache"):
        assert directory_faults.find_objection(str(path)).startswith(str(file))


def test_directory_is_not_to_blame_for_a_process_that_can_open_no_more_files(tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(builtins, "open", fail)
    assert directory_faults.probe(str(tmp_path)) is None
