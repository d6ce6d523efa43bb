"""`safecache doctor` over what lies in caches: damaged, unsealed, moved away, left behind, and never hit."""

from __future__ import annotations

import json
import os
import shutil
import time

import pytest
from conftest import needs_root
from helpers.caches import DAY, HOUR, Cache

from safecache.crash_guard import strikes
from safecache.crash_guard.markers import Blame
from safecache.doctor import contents
from safecache.places import layout
from safecache.reporting.kinds import Kind, Reason
from safecache.settings import config
from safecache.signing import seal
from safecache.signing.keys import Key

# Root whom modes bind.
BOUND = ("--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-dac_override,-dac_read_search")
KEY = Key.derive(b"s" * 64)
OTHER = Key.derive(b"o" * 64)


@pytest.fixture
def cache(machine):
    """The machine's, of a user with a key."""
    place = machine.home / ".config" / "safecache"
    place.mkdir(parents=True, mode=0o700)
    (place / "sealing.key").write_bytes(b"s" * 64)
    (place / "sealing.key").chmod(0o600)
    return Cache(machine.inductor, time.time())


def entry(cache, number: int, key: Key | None = KEY, damaged: bool = False, made_with: dict[str, str] | None = None):
    """One of AOTAutograd, sealed with ``key``."""
    name = f"a{number:051}".replace("0", "z").replace("1", "y").replace("8", "x").replace("9", "w")
    content = b"entry %d" % number
    if key is not None:
        content = seal.attach(content, Kind.AOT_ENTRY, name, key, made_with or {})
    path = cache.root / "aotautograd" / name / layout.name_entry(content)
    return cache.file(path, 2 * DAY, b"X" + content[1:] if damaged else content)


def test_entries_that_verify(machine, cache):
    entry(cache, 2)
    found = machine.examine().one("entries", "ok")
    assert f"1 file in {machine.inductor} verify" in found["evidence"]


def test_damaged_entry_is_named(machine, cache):
    entry(cache, 2)
    damaged = entry(cache, 3, damaged=True)
    found = machine.examine().one("damaged-entries", "warning")
    assert (
        f"1 of 2 files in {machine.inductor} are damaged: {damaged}" in found["evidence"]
        and "safecache verify" in found["remedy"]
    )


def test_what_processes_have_died_of_is_named_with_how_to_see_and_lift_that(machine, cache, monkeypatch):
    path = entry(cache, 2)
    key, place = os.path.basename(os.path.dirname(path)), str(machine.inductor)
    name = os.path.relpath(path, machine.inductor)
    machine.inductor.joinpath("triton", "0").mkdir(parents=True)
    assert "crashed-first-runs" not in machine.examine().codes
    monkeypatch.setenv("XDG_CONFIG_HOME", str(machine.home / ".config"))
    monkeypatch.setattr(config, "_current", None)
    strikes.add(place, [name], Blame.UNSURE, Reason.CRASHED_RUN, time.time())
    kernel = os.path.join(place, "triton", "0")
    strikes.add(kernel, ["A" * 52], Blame.SURE, Reason.CRASHED_RUN, time.time())
    found = machine.examine().one("crashed-first-runs", "warning")
    assert f"AOTAutograd entry {key} (quarantined at the next crash)" in found["evidence"]
    assert "(quarantined)" in found["evidence"]
    assert f"safecache ls --crashed {place}" in found["remedy"]
    assert f"safecache forget --all --in {place}" in found["remedy"]


def test_unsealed_entries_can_be_adopted(machine, cache):
    for number in range(2, 7):
        entry(cache, number, key=None)
    found = machine.examine().one("unsealed-entries", "warning")
    assert "5 of 5 files" in found["evidence"] and found["evidence"].count(str(machine.inductor)) == 4
    assert found["remedy"].startswith(f"safecache adopt {machine.inductor}")


def test_entries_of_another_torch_are_a_note(machine, cache):
    entry(cache, 2, made_with={"torch": "2.0.0"})
    found = machine.examine().one("entries-of-other-builds", "info")
    assert "built with torch 2.0.0" in found["evidence"] and found["remedy"].startswith("safecache gc --max-age 30d ")


def test_entries_of_a_key_that_this_user_does_not_hold(machine, cache):
    entry(cache, 2, OTHER)
    found = machine.examine().one("refused-entries", "warning")
    assert OTHER.id.hex() in found["evidence"] and found["remedy"].startswith("safecache keys  # ")


def test_container_that_has_lost_its_key(machine, cache):
    """Before the first process makes another one."""
    entry(cache, 2)
    shutil.rmtree(machine.home / ".config")
    found = machine.examine().one("entries-without-key", "warning")
    assert "SAFECACHE_KEY_FILE" in found["remedy"] and "1 file." in found["evidence"]


def test_exposed_cache_is_verified_all_the_same(machine, cache):
    entry(cache, 2)
    cache.code("a", DAY)
    machine.inductor.chmod(0o777)
    report = machine.examine(env={"SAFECACHE_STRICT": "1"})
    assert report.one("exposed-directory", "warning") and "check-failed" not in report.codes
    assert "1 of 2 files" in report.one("unsealed-entries", "warning")["evidence"]


def test_sample_of_a_large_cache_is_the_same_each_time(machine, cache, monkeypatch):
    for number in range(2, 602):
        entry(cache, number)
    found = machine.examine().one("entries", "ok")
    assert "a sample of 200 of 600 files" in found["evidence"]
    entries = list(layout.walk(str(cache.root)))
    sample = contents._sample_files(entries, 250)
    assert sample == contents._sample_files(entries, 250) and {0, 597} <= {entries.index(each) for each in sample}


def test_file_that_is_too_large_to_be_read_here_is_left_out(tmp_path):
    paths = []
    for number in range(4):
        paths.append(layout.Location(str(tmp_path / str(number)), Kind.AOT_ENTRY, "k"))
        with open(paths[-1].path, "wb") as file:
            file.truncate(1 << 30 if number == 0 else 1000)
    assert contents._sample_files(paths, 250) == paths[1:]


@needs_root
def test_cache_that_cannot_be_looked_into_keeps_no_other_from_it(machine, cache):
    entry(cache, 2)
    layer = machine.base / "layer"
    layer.mkdir(mode=0o000)
    report = machine.examine(env={"SAFECACHE_LOWER": layer}, within=["setpriv", *BOUND])
    assert str(layer) in report.one("not-looked-into", "info")["evidence"]
    assert "entries" in report.codes and str(layer) in report.one("layer-missing", "warning")["evidence"]


def test_pack_that_cannot_be_used_is_named(machine, cache):
    pytest.importorskip("zstandard")
    layers = [machine.base / "cut.safecache", machine.base / "gone.safecache"]
    layers[0].write_bytes(b"no pack")
    report = machine.examine(env={"SAFECACHE_LOWER": ":".join(map(str, layers))})
    found = [each["evidence"] for each in report.findings if each["code"] == "pack-unusable"]
    assert all(any(str(layer) in evidence for evidence in found) for layer in layers), found
    assert "layer-missing" not in report.codes


def test_quarantine_is_told_by_reason(machine, cache):
    for name, reason in (("a", "damaged"), ("b", "damaged"), ("c", "unsealed")):
        _, note = cache.quarantined(name, HOUR)
        note.write_text(json.dumps({"from": "/x", "reason": reason, "time": "2026-01-01T00:00:00Z"}))
    cache.quarantined("d", HOUR)[1].write_text("[" * 10_000)
    found = machine.examine().one("quarantine", "warning")
    assert (
        "4 files are in quarantine" in found["evidence"]
        and "2 damaged, 1 unsealed, 1 without a note" in found["evidence"]
    )


def test_temporary_files_of_dead_writers(machine, cache):
    cache.file(cache.root / "aotautograd" / "a" / "x", HOUR)
    folder = entry(cache, 2).parent
    cache.file(folder / ".1234.5678.tmp", 3 * DAY, b"x" * 5000)
    cache.file(folder.parents[1] / "aa" / ".0123456789abcdef.tmp", 3 * DAY)
    cache.file(folder.parents[1] / "aa" / ".0123456789abcdee.tmp", HOUR)
    found = machine.examine().one("stray-temporaries", "info")
    assert "2 temporary files" in found["evidence"] and found["remedy"] == f"safecache gc {machine.inductor}"


def test_what_is_no_file_among_the_entries_hangs_nothing(machine, cache):
    folder = entry(cache, 2).parent
    os.mkfifo(folder / "fifo")
    (folder / "link").symlink_to("/dev/zero")
    found = machine.examine().one("damaged-entries", "warning")
    assert "2 of 3 files" in found["evidence"] and "a FIFO" in found["evidence"]


# Hits ----------------------------------------------------------------------------------------------------------------


def run(cache, name: str, age: float, *lines: dict):
    """Have the journal of a process tell this of its lookups."""
    path = cache.root / ".safecache/journal" / f"20260101T000000-1-{name.encode().hex()}.jsonl"
    who = {"time": cache.now - age, "run": name, "pid": 1}
    return cache.file(path, age, b"".join(json.dumps(who | line).encode() + b"\n" for line in lines))


MISS = {"layer": "fx", "outcome": "miss", "reason": "key differs", "counts": {}}
HIT = {"counts": {"fx hit": 3, "triton hit": 1}}


def test_runs_that_hit_nothing_of_what_was_there(machine, cache):
    entry(cache, 2)
    run(cache, "one", 2 * HOUR, MISS)
    assert "2 fx miss: key differs" not in machine.examine().one("never-hit", "info")["evidence"]
    run(cache, "two", HOUR, MISS, MISS | {"counts": {"fx miss: never seen": 5}})
    found = machine.examine().one("never-hit", "warning")
    assert "7 lookups, 5 fx miss: never seen, 2 fx miss: key differs; 1 entry was there" in found["evidence"]
    assert "(two) hit nothing" in found["evidence"] and found["remedy"].startswith("safecache stats --run last")


def test_run_with_a_hit_by_one_of_its_processes_is_served(machine, cache):
    entry(cache, 2)
    run(cache, "one", 2 * HOUR, MISS)
    run(cache, "two", HOUR, MISS)
    served = run(cache, "other process", HOUR, HIT | {"run": "two"})
    assert "never-hit" not in machine.examine().codes
    served.write_bytes(b"[1]\n{\n" + b"[" * 5000)
    assert machine.examine().one("never-hit", "warning")


def test_first_run_in_an_empty_cache_has_nothing_to_hit(machine, cache):
    run(cache, "one", 3 * DAY, MISS)
    entry(cache, 2)
    assert "never-hit" not in machine.examine().codes
