"""gc, du and clean: their numbers, their reasons, and the directories that torch and Triton would use."""

from __future__ import annotations

import json
import os
import time

import pytest
from helpers.caches import DAY, HOUR, Cache, key

from safecache.places import layout
from safecache.tiers import levels
from safecache.upkeep import eviction


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache", time.time())


@pytest.fixture
def report(run, cache):
    """What a command says of the cache as JSON."""

    def ask(command, *arguments, code=0):
        said = run(command, *arguments, "--json", cache.root)
        assert said.code == code, said.err
        [report] = json.loads(said.out)["directories"]
        return report if command == "du" else json.loads(said.out)["directories"][report]

    return ask


def test_du_tells_what_there_is_by_kind(cache, report):
    cache.aot("a", 30 * DAY)
    cache.aot("b", 2 * HOUR, size=500)
    cache.code("a", DAY)
    cache.file(cache.root / "mine", 0, b"x" * 50)
    found = report("du")
    assert found["directory"] == str(cache.root)
    entries = found["kinds"]["AOTAutograd entries"]
    assert (entries["groups"], entries["files"], entries["bytes"]) == (2, 2, 1500)
    assert found["kinds"]["sources and libraries"]["files"] == 4
    assert found["other"] == {"files": 1, "bytes": 50}
    assert found["total"] == {"files": len(cache.files()), "bytes": cache.size()}
    stamps = [time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(cache.now - age)) for age in (30 * DAY, 2 * HOUR)]
    assert [entries["oldest_use"], entries["newest_use"]] == stamps


@pytest.mark.parametrize("age", [-1e12, 1e11], ids=["future", "past"])
def test_du_tells_of_stamps_that_are_no_dates(cache, report, age):
    try:
        cache.aot("a", age)
    except OSError:
        pytest.skip("this file system does not keep such a stamp")
    assert report("du")["kinds"]["AOTAutograd entries"]["groups"] == 1


def test_du_prints_the_same_for_people(cache, run):
    cache.aot("a", 30 * DAY, size=2_500_000)
    said = run("du", cache.root)
    assert said.code == 0
    [row] = [line for line in said.lines if "AOTAutograd" in line]
    assert "2.5 MB" in row and row.count("30 d ago") == 2


def test_gc_keeps_to_the_limits_that_are_set(cache, report, settings):
    for name, age in (("a", 40 * DAY), ("b", 20 * DAY), ("c", 2 * HOUR)):
        cache.aot(name, age)
    settings(SAFECACHE_MAX_AGE="30d", SAFECACHE_MAX_BYTES="1kB")
    found = report("gc")
    assert found["removed"] == {"groups": 2, "files": 2, "bytes": 2000, "kinds": {"AOTAutograd entries": 2}}
    assert found["left"] == {"files": 1, "bytes": 1000} and found["kept"] == {}


def test_option_of_gc_goes_before_the_setting(cache, report, settings):
    cache.aot("a", 40 * DAY)
    settings(SAFECACHE_MAX_AGE="30d")
    assert report("gc", "--max-age", "60d")["removed"]["groups"] == 0
    assert report("gc", "--max-age", "60d", "--max-files", "1")["removed"]["groups"] == 0
    assert report("gc", "--max-bytes", "0.9kB", "--max-age", "60d")["removed"]["groups"] == 1


def test_gc_that_cannot_meet_the_limit_tells_why_and_fails(cache, run, report):
    cache.aot("a", 0.5 * HOUR)
    found = report("gc", "--max-bytes", "1", code=1)
    assert found["kept"] == {"it was used in the last 1 h": {"groups": 1, "files": 1, "bytes": 1000}}
    said = run("gc", "--max-bytes", "1", cache.root)
    assert said.code == 1 and "1 group, 1 file, 1.0 kB left: it was used in the last 1 h" in said.out


def test_gc_without_a_limit_says_so(cache, run):
    cache.aot("a", 4000 * DAY)
    said = run("gc", cache.root)
    assert said.code == 0 and "SAFECACHE_LIMITS" in said.err and len(cache.files()) == 1


def test_quiet_gc_prints_nothing(cache, run, monkeypatch):
    nice = []
    monkeypatch.setattr(os, "nice", nice.append)
    cache.aot("a", 40 * DAY)
    said = run("gc", "--quiet", "--max-age", "1d", cache.root)
    assert (said.code, said.out, said.err, cache.files(), nice) == (0, "", "", [], [19])


@pytest.mark.parametrize(
    "arguments", [("--max-bytes", "10 parsecs"), ("--max-bytes", "0"), ("--max-age", "30"), ("--max-files", "1k")]
)
def test_limit_that_is_none_is_a_usage_error(cache, run, arguments):
    said = run("gc", *arguments, cache.root)
    assert said.code == 2 and arguments[1] in said.err


@pytest.mark.parametrize("command", ["gc", "clean"])
def test_dry_run_removes_nothing(cache, report, command):
    cache.code("a", 40 * DAY)
    limit = ("--max-age", "1d") if command == "gc" else ()
    found = report(command, "--dry-run", *limit)
    assert found["removed"]["groups"] == 1 and found["left"] == {"files": 0, "bytes": 0} and len(cache.files()) == 4


def test_clean_removes_all_that_is_not_in_use_and_tells_what_is(cache, report, holding):
    for make in (cache.aot, cache.fx, cache.code, cache.kernel, cache.header, cache.quarantined):
        make("a", 2 * HOUR)
    cache.aot("used", 0.5 * HOUR)
    lock = cache.code("building", 2 * HOUR)[3]
    stranger = cache.file(cache.root / "mine", 4000 * DAY)
    with holding(lock):
        found = report("clean", code=1)
    assert found["removed"]["groups"] == 6
    assert {why: sums["files"] for why, sums in found["kept"].items()} == {
        "it was used in the last 1 h": 1,
        "its lock is held": 4,
    }
    assert len(cache.files()) == 6 and stranger.exists()
    assert report("clean", "--force")["removed"]["groups"] == 2 and cache.files() == [stranger]


def test_clean_leaves_what_a_real_process_has_mapped(cache, report, mapping):
    library = cache.code("a", 2 * HOUR)[1]
    cache.code("b", 2 * HOUR)
    with mapping(library) as pid:
        found = report("clean", code=1)
    assert list(found["kept"]) == [f"process {pid} has it mapped"] and library.exists()
    assert found["removed"]["groups"] == 1


def test_directory_of_another_user_is_an_error_that_says_so(cache, run, monkeypatch):
    monkeypatch.setattr(eviction, "_is_foreign", lambda owner: True)
    cache.aot("a", 40 * DAY)
    said = run("clean", cache.root)
    assert said.code == 1 and "is left alone" in said.err and len(cache.files()) == 1


@pytest.mark.parametrize("command", ["gc", "clean", "du", "ls"])
def test_directory_that_is_not_there_is_an_error(tmp_path, run, command):
    said = run(command, tmp_path / "nowhere")
    assert said.code == 1 and "nowhere" in said.err


@pytest.mark.parametrize("command", ["gc", "clean"])
def test_sweep_by_another_process_is_told(cache, run, holding, command):
    with holding(cache.root):
        said = run(command, cache.root)
    assert "another process is removing from it" in said.out


@pytest.fixture
def places(tmp_path, monkeypatch):
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TRITON_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LOGNAME", "some/body")
    monkeypatch.setattr(layout.tempfile, "gettempdir", lambda: str(tmp_path / "tmp"))
    (tmp_path / "tmp" / "torchinductor_some_body" / "precompiled_headers").mkdir(parents=True)
    (tmp_path / "home" / ".triton" / "cache").mkdir(parents=True)
    for name in ("inductor", "triton", "triton-home/.triton/cache"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        pytest.param({}, ["tmp/torchinductor_some_body", "home/.triton/cache"], id="defaults"),
        pytest.param(
            {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"},
            ["inductor", "tmp/torchinductor_some_body/precompiled_headers", "triton"],
            id="named",
        ),
        pytest.param(
            {"TRITON_HOME": "triton-home"},
            ["tmp/torchinductor_some_body", "triton-home/.triton/cache"],
            id="home-of-triton",
        ),
        pytest.param({"TORCHINDUCTOR_CACHE_DIR": "nowhere", "TRITON_CACHE_DIR": "tmp"}, ["tmp"], id="nested"),
    ],
)
def test_directories_are_those_of_the_environment_each_once(places, environ, expected):
    absolute = {name: str(places / path) for name, path in environ.items()}
    assert levels.list_caches(absolute) == [str(places / path) for path in expected]


def test_commands_take_the_directories_of_the_environment(cache, run, monkeypatch, tmp_path, places):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(cache.root))
    cache.aot("a", 40 * DAY)
    reports = json.loads(run("du", "--json").out)["directories"]
    assert [report["total"]["files"] for report in reports] == [1, 0, 0]
    assert run("clean").code == 0 and cache.files() == []


def test_stamp_of_the_only_use_is_what_counts(cache, run):
    """Not the time of access: reading does not keep what nobody uses, as a backup does."""
    entry = cache.aot("a", 40 * DAY)
    os.utime(entry, (time.time(), entry.stat().st_mtime))
    assert run("gc", "--max-age", "30d", cache.root).code == 0
    assert not entry.exists() and key("a", "a") not in os.listdir(cache.root / "aotautograd")
