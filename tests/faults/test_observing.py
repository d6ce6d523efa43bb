"""SAFECACHE=observe: what would be refused is reported and used as in stock torch, and is laundered by nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest
from conftest import SOURCE, WARM, python
from scenes import authenticity_scenes

from faults.authenticity import MATRIX, SINKS
from safecache.history import run_summary
from safecache.reporting.kinds import UNREAD, Reason

OBSERVE = {"SAFECACHE": "observe"}
HERE = {"gpu": "sm_90"}


@pytest.mark.parametrize("sink", SINKS)
def test_attack_is_reported_and_what_it_planted_is_used(home, trojan, sink):
    if sink == "kernel":
        pytest.importorskip("triton")
    attacks = [attack for attack, row in MATRIX.items() if isinstance(row[sink], Reason) and attack != "swap"]
    arguments = {"sink": sink, "attacks": attacks, "directory": str(home.base), "trojan": str(trojan)}
    answer = home.run(authenticity_scenes.face, build=HERE, env=OBSERVE, **arguments)
    assert answer.ok, answer
    reasons = {reason.value for reason in Reason}
    for attack in attacks:
        cell, expected = answer.result[attack][0], MATRIX[attack][sink]
        if expected in UNREAD:
            assert not cell["ran"] and cell["counts"].keys() & {expected.value, "unusable directory"}, (attack, cell)
            continue
        # Files of any owner are read, as in stock torch: this one has a seal.
        met = set() if expected is Reason.FOREIGN_OWNER else {(expected.value, 1)}
        given = {(reason, cell["counts"][reason]) for reason in reasons & cell["counts"].keys()}
        assert given >= met and not cell["sealed"] and "quarantined" not in cell["counts"], (attack, cell)
        # A library that is loaded already is not loaded again from the same path, and a damaged package is harmless.
        assert cell["ran"] or (sink in ("library", "package") and cell["outcome"] == "hit"), (attack, cell)


def contents(home):
    """What lies in the cache, without what safecache notes beside it."""
    found = {path: path for path in home.cache.rglob("*") if path.is_file() and ".safecache" not in path.parts}
    return {str(path): path.read_bytes() for path in found}


@pytest.fixture
def stock(home):
    """A cache that stock torch has filled."""
    assert home.run(stock=True).ok
    return home


def test_cache_of_stock_is_used_and_left_as_it_is(stock):
    before = contents(stock)
    answer = stock.run(env=OBSERVE)
    assert answer.ok and answer.hits == WARM and contents(stock) == before and not stock.quarantined, answer
    assert answer.stats["unsealed"] == 4 and "sealed" not in answer.stats and not answer.code_stats, answer
    assert len(answer.warnings) == 3 and all("would refuse" in text for text in answer.warnings), "one for each kind"
    again = stock.run()
    assert again.ok and again.result["aot"]["hit"] == 0 and again.stats["unsealed"] == 4, again


def test_stats_say_what_would_be_refused_and_why(stock):
    stock.run(env=OBSERVE)
    said = json.loads(command(stock, "stats", stock.cache, "--json")[1])
    assert said["would_be_refused"] == {
        "AOTAutograd entry would be refused: unsealed": 1,
        "FX graph entry would be refused: unsealed": 2,
        "compiled code would be refused: unsealed": 1,
    }
    effect = said["effect"]
    assert (effect["hits"], effect["would_be_refused"], effect["refused"]) == (1, 4, 0)
    assert {row["file"] for row in said["observed"]} <= contents(stock).keys() and len(said["observed"]) == 4
    assert (
        command(stock, "stats", stock.cache)[1]
        .splitlines()[-1]
        .startswith("effect: 1 hit, 4 files used that SAFECACHE=1 refuses, 0 lookups refused what was there")
    )


def test_what_contains_what_does_not_verify_is_saved_without_a_seal(stock):
    """Or the first start without it would use what it was made of."""
    shutil.rmtree(stock.cache / "aotautograd")
    answer = stock.run(env=OBSERVE)
    assert answer.ok and answer.stats["saved"] == 1 and "no key" not in answer.stats, answer
    assert stock.run(env=OBSERVE).hits == WARM, "it is saved, as in stock"
    again = stock.run()
    assert again.ok and again.result["aot"]["hit"] == 0 and again.stats["unsealed"] == 4, again


def test_what_verifies_is_saved_with_a_seal(home):
    answer = home.run(env=OBSERVE)
    assert answer.ok and answer.warnings == [] and answer.stats == {"sealed": 3, "saved": 3}, answer
    again = home.run()
    assert again.ok and again.hits == WARM, again


def test_damaged_entry_is_used_only_while_observing(warm):
    """The byte lies in the seal: what is unpickled is whole."""
    (entry,) = warm.aot_entries
    damaged = bytearray(entry.read_bytes())
    damaged[-40] ^= 1
    entry.write_bytes(damaged)
    answer = warm.run(env=OBSERVE)
    assert answer.ok and answer.hits == WARM and entry.read_bytes() == damaged, answer
    again = warm.run()
    assert again.ok and again.result["aot"]["hit"] == 0, again


def test_lower_tier_is_no_cache_of_stock(stock, new_home):
    upper = new_home()
    answer = upper.run(env=OBSERVE | {"SAFECACHE_LOWER": str(stock.cache)})
    assert answer.ok and answer.hits == (0, 0) and answer.stats["unsealed"] >= 1, answer
    assert upper.run().hits == WARM, "nothing that does not verify was used, so all of it is sealed"


def command(home, *arguments):
    """What the command line prints, in an environment that observes."""
    said = subprocess.run(
        [sys.executable, "-m", "safecache", *map(str, arguments)],
        env=os.environ | home.environment | OBSERVE | {"PYTHONPATH": str(SOURCE)},
        text=True,
        capture_output=True,
    )
    return said.returncode, said.stdout


def test_tools_say_what_would_be_refused(stock):
    assert command(stock, "verify", stock.cache)[0] == 1
    assert command(stock, "copy", stock.cache, stock.base / "all.safecache")[0] != 0, "or it would seal them"
    assert "SAFECACHE=observe" in command(stock, "doctor", "--no-import")[1]
    assert "SAFECACHE=observe" in command(stock, "status", "--no-import")[1]


STOPS = """
import pickle, sys
import safecache
from safecache.signing import keyring
from safecache.integrations.compile_workers import WorkerPickler
ring = keyring.current()
assert ring.signing is not None and not keyring.has_stopped()
ephemeral = keyring.get_ephemeral_key()
if sys.argv[1] == "send":
    keyring.stop_sealing()
    assert keyring.find(ephemeral.id) is None, "what was attested with it would be taken by who has that key"
    print(WorkerPickler().dumps("result").hex())
else:
    assert WorkerPickler().loads(bytes.fromhex(sys.argv[2])) == "result"
assert keyring.current().signing is None and keyring.has_stopped()
"""


def test_results_of_a_worker_say_that_it_has_used_what_does_not_verify(home):
    """What it returns may contain that, and the process that has asked for it would seal it."""
    sent = python(STOPS, env=home.environment, arguments=("send",))
    assert sent.returncode == 0, sent.stderr
    received = python(STOPS, env=home.environment, arguments=("receive", sent.stdout.strip()))
    assert received.returncode == 0, received.stderr


def test_line_of_the_journal_is_read_as_what_anybody_may_have_written():
    line = {"time": 1.0, "pid": 1, "counts": {}, "observed": "fx_graph", "reason": "unsealed", "key": "/a"}
    for change in ({}, {"observed": "other world"}, {"reason": 5}, {"observed": ["fx_graph"]}):
        parsed = run_summary._parse_line(json.dumps(line | change).encode())
        assert (parsed is None) == bool(change)
