"""`verify`: all files, by several readers at once, told in the order of the directories; a bar only for a person."""

from __future__ import annotations

import json
import threading
import time
from functools import partial

import pytest
from helpers.caches import HOUR, Cache
from helpers.listed import entry

from safecache.cli import keys, view
from safecache.fs import parallel
from safecache.signing import keyring
from safecache.upkeep import audit


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache", time.time())


def test_refused_files_are_told_in_the_order_of_the_directories(cache, run, monkeypatch):
    """Whoever is judged first."""
    paths = sorted(str(cache.aot(f"{number}", HOUR)) for number in range(12))
    judge = audit._judge_file

    def slow(location):
        time.sleep(0.05 * (location.path == paths[0]))
        return judge(location)

    monkeypatch.setattr(audit, "_judge_file", slow)
    report = json.loads(run("verify", cache.root, "--json").out)
    assert [each["path"] for each in report["refused"]] == paths


def test_several_files_are_read_at_once(cache, run, monkeypatch):
    for number in range(parallel.READERS):
        entry(cache, f"{number}")
    together = threading.Barrier(parallel.READERS, timeout=10)  # broken where they come one by one
    judge = audit._judge_file

    def wait(location):
        together.wait()
        return judge(location)

    monkeypatch.setattr(audit, "_judge_file", wait)
    assert run("verify", cache.root).code == 0


@pytest.mark.parametrize("command", ["verify", "ls"])
def test_key_is_read_by_one_though_several_need_it(cache, run, monkeypatch, command):
    """Or one would say that it was made just now, and the others not."""
    for number in range(parallel.READERS):
        entry(cache, f"{number}")
    read, own = [], keyring._load_own_key

    def slow(*arguments):
        read.append(arguments)
        time.sleep(0.05)
        return own(*arguments)

    monkeypatch.setattr(keyring, "_load_own_key", slow)
    keyring.renew()
    assert run(command, cache.root).code == 0 and len(read) == 1


def test_directories_are_those_of_the_environment_unless_named(cache, run, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(cache.root))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setattr("safecache.places.layout.tempfile.gettempdir", lambda: str(tmp_path / "tmp"))
    path = cache.aot("a", HOUR)
    cache.file(tmp_path / "triton" / ("A" * 52) / "k.cubin", HOUR)
    report = json.loads(run("verify", "--json").out)
    assert (report["entries"], report["code"]) == (1, 1)
    assert str(path) in [each["path"] for each in report["refused"]]
    assert json.loads(run("ls", "--json").out)["total"] == 2


@pytest.mark.parametrize("is_terminal", [True, False])
def test_bar_is_for_a_terminal_alone_and_not_in_the_output(cache, run, monkeypatch, is_terminal):
    monkeypatch.setattr(view, "Console", partial(view.Console, force_terminal=is_terminal))
    entry(cache, "a")
    said = run("verify", cache.root, "--json")
    assert json.loads(said.out)["outcomes"] == {"verified": 1}
    assert ("verifying" in said.err) is is_terminal


def test_reader_that_fails_ends_the_others(cache):
    begun = []

    def fail(number):
        begun.append(number)
        if number == 0:
            raise KeyError(number)
        time.sleep(0.01)

    with pytest.raises(KeyError):
        list(parallel.map_in_threads(fail, range(1000)))
    assert len(begun) < 1000


def test_entry_that_is_removed_meanwhile_is_told_as_unreadable(cache, run, monkeypatch):
    path = entry(cache, "a")
    walk = keys.layout.walk

    def and_remove(root):
        yield from list(walk(root))
        path.unlink()

    monkeypatch.setattr(keys.layout, "walk", and_remove)
    assert json.loads(run("verify", cache.root, "--json").out)["outcomes"] == {"unreadable": 1}
