"""An operation is done once more where the directory was at fault, and nothing else is touched."""

from __future__ import annotations

import errno
import os
import shutil
import time

import pytest

from safecache import session
from safecache.errors import CacheWriteError
from safecache.reporting import events
from safecache.settings import config
from safecache.tiers import fallback


@pytest.fixture
def cache(tmp_path, monkeypatch, settings):
    settings()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("_SAFECACHE_REDIRECTED", "")
    session.reset()
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache"


def failing_at(cache):
    """Work that can be done anywhere but there, and where it was tried."""
    tried = []

    def work():
        tried.append(config.cache_directory())
        if tried[-1] == str(cache):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(cache / "file"))
        return "done"

    return work, tried


def test_work_is_done_once_more_elsewhere(cache):
    work, tried = failing_at(cache)
    assert fallback.attempt(work) == "done" and len(tried) == 2
    assert fallback.find_original(tried[1]) == str(cache) and os.stat(tried[1]).st_mode & 0o777 == 0o700
    assert fallback.attempt(work) == "done" and tried[2] == tried[1], "which stays so for a while"


def test_strict_mode_raises_with_its_cause(cache, settings):
    settings(SAFECACHE_STRICT="1")
    work, tried = failing_at(cache)
    with pytest.raises(CacheWriteError, match="Permission denied") as caught:
        fallback.attempt(work)
    assert isinstance(caught.value.__cause__, PermissionError) and tried == [str(cache)]


def test_other_errors_are_raised_as_they_are(cache):
    error, calls = ValueError("no"), []

    def work():
        calls.append(1)
        raise error

    with pytest.raises(ValueError) as caught:
        fallback.attempt(work)
    assert caught.value is error and calls == [1] and config.cache_directory() == str(cache)


def test_error_of_the_second_attempt_is_the_last(cache):
    def work():
        raise OSError(errno.EACCES, "no", os.path.join(config.cache_directory(), "file"))

    with pytest.raises(PermissionError) as caught:
        fallback.attempt(work)
    assert not caught.value.filename.startswith(str(cache))


def test_fault_is_said_once(cache, caplog):
    events._state.reset()
    work, _ = failing_at(cache)
    fallback.attempt(work)
    config.end_redirection()
    fallback.attempt(work)
    assert len(caplog.records) == 1 and str(cache) in caplog.text
    assert events.read_counters()["unusable directory"] == 2


def test_directory_that_is_mended_is_used_again_after_a_minute(cache, monkeypatch):
    cache.rmdir()
    cache.write_text("in the way")
    fallback.ensure_cache_directory(lambda: str(cache))
    place = config.cache_directory()
    assert fallback.find_original(place) == str(cache)
    cache.unlink()
    fallback.ensure_cache_directory(lambda: str(cache))
    assert config.cache_directory() == place
    later = time.monotonic() + 61
    monkeypatch.setattr(time, "monotonic", lambda: later)
    fallback.ensure_cache_directory(lambda: str(cache))
    assert config.cache_directory() == str(cache) and config.get_redirection() is None


def test_directory_is_looked_at_once_a_minute(cache, monkeypatch):
    looks = []
    monkeypatch.setattr(fallback.directory_faults, "find_objection", looks.append)
    for _ in range(5):
        fallback.ensure_cache_directory(lambda: str(cache))
    assert looks == [str(cache)]


def test_directory_that_has_failed_is_looked_at_again(cache, settings, monkeypatch):
    """Though it was found to be good a moment before."""
    settings(SAFECACHE_STRICT="1")
    fallback.ensure_cache_directory(lambda: str(cache))
    with pytest.raises(CacheWriteError):
        fallback.attempt(failing_at(cache)[0])
    looks = []
    monkeypatch.setattr(fallback.directory_faults, "find_objection", looks.append)
    fallback.ensure_cache_directory(lambda: str(cache))
    assert looks == [str(cache)]


def test_stand_in_that_was_removed_is_not_used_any_more(cache):
    work, tried = failing_at(cache)
    fallback.attempt(work)
    shutil.rmtree(tried[1])
    fallback.ensure_cache_directory(lambda: str(cache))
    assert config.cache_directory() == str(cache)
