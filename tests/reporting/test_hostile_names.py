"""What a file in a cache is called, its author chose: it reaches a log, an error and a terminal as one line of letters."""

from __future__ import annotations

import io
import json
import logging
import os
import time

import pytest
from helpers.caches import HOUR, Cache, key
from helpers.fresh import forget_kernels
from helpers.listed import aside

from safecache import errors
from safecache.entries import loading
from safecache.errors import EntryRefusedError, make_printable
from safecache.places.layout import CodeFile
from safecache.places.refs import Ref
from safecache.reporting import events
from safecache.reporting.kinds import Kind, Reason
from safecache.store import gate

# Sets the title of the window, rings, forges a line of a log, clears the screen, and writes backwards; and no UTF-8.
HOSTILE = "\x1b]0;owned\x07\r\n12:00 safecache: all is well\x9b2J\u202egpj.exe\u2066\udcff"
SHOWN = r"\x1b]0;owned\x07\r\n12:00 safecache: all is well\x9b2J\u202egpj.exe\u2066\udcff"


@pytest.fixture
def cache(tmp_path):
    forget_kernels()
    return Cache(tmp_path / "cache", time.time())


@pytest.fixture
def log():
    """All that a stream handler would write, as of a server."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logger = logging.getLogger("safecache")
    logger.addHandler(handler)
    yield stream.getvalue
    logger.removeHandler(handler)


def is_plain(text):
    return all(line.isprintable() for line in text.split("\n"))


def look_up(cache, path):
    source = loading.Source(Ref(Kind.AOT_ENTRY, path.parent.name, str(cache.root)), lambda found: True)
    return list(loading.look_up_entries(source, local=True, remote=None))


def plant(cache, content=b"planted"):
    path = cache.root / "aotautograd" / key("a", "a") / HOSTILE
    return cache.file(path, HOUR, content)


def test_name_of_a_refused_entry_is_one_line_in_the_log(cache, log):
    plant(cache)
    assert look_up(cache, cache.root / "aotautograd" / key("a", "a") / "entry") == []
    assert log().count("\n") == 1 and is_plain(log()) and SHOWN in log()
    assert log().startswith("safecache: refused AOTAutograd entry ")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=lambda make: make.__name__)
def test_name_of_what_is_no_file_is_one_line_in_the_log(cache, log, make):
    path = cache.root / "aotautograd" / key("a", "a") / HOSTILE
    path.parent.mkdir(parents=True)
    make(path)
    assert look_up(cache, path) == []
    assert log().count("\n") == 1 and is_plain(log()) and SHOWN in log()


def test_what_is_said_for_debugging_is_escaped_too(log, caplog):
    caplog.set_level(logging.DEBUG, logger="safecache")
    for _ in range(2):
        events.report(Reason.DAMAGED, f"{HOSTILE} is damaged", remedy=HOSTILE)
    assert log().count("\n") == 2 and is_plain(log())


def test_error_of_strict_mode_is_one_line(cache, settings):
    settings(SAFECACHE_STRICT=1)
    with pytest.raises(EntryRefusedError) as caught:
        look_up(cache, plant(cache))
    assert str(caught.value).isprintable() and SHOWN in str(caught.value)


def test_error_of_code_that_is_not_loaded_is_one_line(cache):
    path = cache.file(cache.root / "ab" / f"{HOSTILE}.so", HOUR)
    with pytest.raises(EntryRefusedError) as caught:
        gate.verify_load_path(CodeFile(str(path), str(cache.root)))
    assert str(caught.value).isprintable() and SHOWN in str(caught.value)


@pytest.mark.parametrize("name", sorted(set(errors.__all__) - {"TritonCompileCrash"}))
def test_every_error_is_one_line(name):
    """But for the one that quotes what a compiler has said."""
    assert str(getattr(errors, name)(HOSTILE)) == SHOWN


def fill(cache):
    plant(cache)
    cache.file(cache.root / "ab" / f"{HOSTILE}.so", HOUR)
    cache.file(cache.root / "triton" / HOSTILE / "x", HOUR)
    cache.file(cache.root / ("A" * 52) / f"__grp__{HOSTILE}.json", HOUR, b"{}")
    cache.file(cache.root / "aotautograd" / key("a", "b") / HOSTILE, HOUR)
    aside(cache.root / "aotautograd" / key("a", "b") / HOSTILE, cache.root)
    cache.file(cache.root / HOSTILE / "x", HOUR)


COMMANDS = [
    ("ls",),
    ("ls", "--all"),
    ("du",),
    ("verify",),
    ("adopt",),
    ("sign",),
    ("gc", "--max-age", "1min"),
    ("explain", "--in"),
    ("stats",),
    ("doctor", "--no-import"),
    ("quarantine", "list", "--in"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: "-".join(command))
def test_commands_print_what_no_terminal_obeys(cache, run, command, monkeypatch):
    fill(cache)
    os.chmod(cache.root, 0o700)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(cache.root))
    arguments = list(command) if command[0] == "doctor" else [*command, cache.root]
    said = run(*arguments)
    assert said.code in (0, 1, 2) and is_plain(said.out) and is_plain(said.err), said
    assert "\n12:00 safecache: all is well" not in said.out + said.err
    if command[0] in ("verify", "quarantine"):
        assert SHOWN in said.out


@pytest.mark.parametrize("action", ["show", "restore"])
def test_quarantine_tells_of_one_item_what_no_terminal_obeys(cache, run, action):
    fill(cache)
    [item] = json.loads(run("quarantine", "list", "--in", cache.root, "--json").out)["items"]
    assert "\x1b" in item["item"]
    said = run("quarantine", action, item["item"], "--in", cache.root)
    assert is_plain(said.out) and is_plain(said.err) and r"\x1b" in said.out + said.err


def test_directory_of_that_name_is_told_plainly(tmp_path, run):
    (tmp_path / HOSTILE).mkdir()
    for command in ("du", "ls", "verify", "gc", "clean", "adopt"):
        said = run(command, tmp_path / HOSTILE)
        assert is_plain(said.out) and is_plain(said.err), said


def test_json_is_exact(cache, run):
    path = plant(cache)
    [refused] = json.loads(run("verify", cache.root, "--json").out)["refused"]
    assert refused["path"] == str(path)


def test_letters_of_all_languages_stay_as_they_are():
    for text in ("naïve café", "日本語", "עברית", "\U0001f600", "a\\x1b"):
        assert make_printable(text) == text
    assert make_printable(HOSTILE) == SHOWN == make_printable(SHOWN)
