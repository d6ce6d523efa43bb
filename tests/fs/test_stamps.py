"""A use is a new time of modification, at most once in a while, and no error where it cannot be set."""

from __future__ import annotations

import os
import subprocess
import time

import pytest
from conftest import needs_root

from safecache import session
from safecache.fs import filesystem, stamps
from safecache.store import entry_files


@pytest.fixture(autouse=True)
def nothing_refuses(monkeypatch):
    session.reset()


@pytest.fixture
def entry(tmp_path):
    path = tmp_path / "entry"
    path.write_bytes(b"content")
    return path


def age(path, seconds):
    moment = time.time() - seconds
    os.utime(path, (moment, moment))
    return path.stat().st_mtime_ns


def is_new(path):
    return abs(time.time() - path.stat().st_mtime) < 60


@pytest.mark.parametrize("seconds", [2 * stamps.INTERVAL, 365 * 86400, -2 * stamps.INTERVAL, -365 * 86400])
def test_reading_stamps_what_has_an_old_stamp_or_one_of_a_clock_that_was_wrong(entry, seconds):
    age(entry, seconds)
    assert entry_files.read_unverified_entry(str(entry)) == b"content" and is_new(entry)


@pytest.mark.parametrize("seconds", [0, stamps.INTERVAL / 2, -stamps.INTERVAL / 2])
def test_reading_again_within_the_interval_leaves_the_stamp(entry, seconds):
    stamp = age(entry, seconds)
    entry_files.read_unverified_entry(str(entry))
    assert entry.stat().st_mtime_ns == stamp


def test_stamp_is_set_before_the_file_is_opened(entry, monkeypatch):
    age(entry, 86400)
    seen = []
    monkeypatch.setattr(entry_files.opening, "read_regular", lambda *rest, **named: seen.append(is_new(entry)))
    entry_files.read_unverified_entry(str(entry))
    assert seen == [True]


def test_header_keeps_its_time_which_compilers_look_at(tmp_path):
    header = tmp_path / "c.h"
    header.write_bytes(b"content")
    stamp = age(header, 86400)
    entry_files.read_unverified_entry(str(header))
    assert header.stat().st_mtime_ns == stamp


def test_layer_below_a_cache_is_not_stamped(tmp_path, settings):
    inside, beside = tmp_path / "lower" / "entry", tmp_path / "lower2" / "entry"
    settings(SAFECACHE_LOWER=tmp_path / "lower")
    for path in (inside, beside):
        path.parent.mkdir()
        path.write_bytes(b"content")
        age(path, 86400)
        entry_files.read_unverified_entry(str(path))
    assert not is_new(inside) and is_new(beside)


def test_what_a_command_reads_does_not_count_as_used(entry):
    stamp = age(entry, 86400)
    with stamps.suspend_stamping():
        entry_files.read_unverified_entry(str(entry))
        with stamps.suspend_stamping():
            pass
        entry_files.read_unverified_entry(str(entry))
    assert entry.stat().st_mtime_ns == stamp
    entry_files.read_unverified_entry(str(entry))
    assert is_new(entry)


def test_verify_command_does_not_stamp(tmp_path, run):
    path = tmp_path / "aotautograd" / "key" / "entry"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"content")
    stamp = age(path, 86400)
    assert run("verify", tmp_path).code == 1 and path.stat().st_mtime_ns == stamp


def test_file_that_cannot_be_stamped_is_read_and_those_of_its_owner_not_tried_again(entry, monkeypatch):
    tried = []

    def refuse(path, *rest, **named):
        tried.append(path)
        raise PermissionError(1, "refused", path)

    monkeypatch.setattr(filesystem, "utime", refuse)
    monkeypatch.setattr(stamps.time, "time", lambda: 4e9)
    assert [entry_files.read_unverified_entry(str(entry)) for _ in range(3)] == [b"content"] * 3
    assert tried == [entry.name]


@needs_root
def test_entry_on_a_read_only_mount_is_read(tmp_path):
    point = tmp_path / "mount"
    point.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", str(point)], check=True)
    try:
        (point / "entry").write_bytes(b"content")
        age(point / "entry", 86400)
        subprocess.run(["mount", "-o", "remount,ro", str(point)], check=True)
        assert entry_files.read_unverified_entry(str(point / "entry")) == b"content" and not is_new(point / "entry")
    finally:
        subprocess.run(["umount", str(point)], check=True)
