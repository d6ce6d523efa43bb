"""Stock torch and safecache share a cache: the same keys, and each reads what the other wrote where it may."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest
from conftest import SOURCE, WARM, python
from scenes import model_scenes

from safecache.history import run_summary
from safecache.places import layout
from safecache.reporting.kinds import Kind
from safecache.signing import keyring, seal


def test_stock_computes_the_same_keys(home, warm):
    ours = warm.run(model_scenes.keys_computed)
    stock = home.run(model_scenes.keys_computed, stock=True)
    assert ours.ok and stock.ok
    assert len(stock.result) == 3 and ours.result == stock.result


def test_keys_of_torch_and_triton_are_those_of_stock_and_hashed_once(home):
    """Stock reads all of torch's sources and Triton's 500 MB in each process."""
    answers = [home.run(model_scenes.build_keys, stock=stock) for stock in (True, False, False)]
    assert all(answer.ok for answer in answers), answers
    (keys, read), *ours = (answer.result for answer in answers)
    assert [found for found, _ in ours] == [keys, keys]
    assert len(read) > 1000 and {*read} <= {*ours[0][1]} and ours[1][1] == [], ours[1][1][:10]


def test_stock_hits_sealed_entries(warm):
    answer = warm.run(stock=True)
    assert answer.ok and answer.hits == WARM and answer.torch_warnings == [], answer


def test_names_of_sealed_entries_are_the_hash_of_their_content(warm):
    for path in warm.aot_entries + warm.fx_entries:
        assert path.name == layout.name_entry(path.read_bytes())


def test_entries_of_stock_are_refused_and_counted_by_default(home):
    home.run(stock=True)
    first = home.run()
    assert first.ok and first.result["aot"]["hit"] == 0, first
    assert first.stats["unsealed"] == 4, "three entries and a library"
    assert (
        len(first.warnings) == 1
        and first.warnings[0].count(f"`safecache adopt {home.cache}` before the next start (logged once") == 1
    ), first
    assert [path.name.rpartition(".")[0] for path in home.quarantined] == [built.name for built in libraries(home)]
    second = home.run()
    assert second.ok and second.hits == WARM, second
    assert home.run(stock=True).hits == WARM, "what stock torch wrote is left to stock torch"


def libraries(home):
    return sorted(home.cache.glob("??/*.so"))


def test_cache_of_stock_is_one_error_with_its_remedy_in_strict_mode(home):
    home.run(stock=True)
    for _ in range(2):
        answer = home.run(strict=True)
        assert "EntryRefusedError" in answer.errors and answer.warnings == [], answer
        (said,) = {text for text in answer.messages if text.startswith("safecache:")}
        assert "it was written without safecache" in said and f"run `safecache adopt {home.cache}`" in said, answer
    assert not home.quarantined and home.run(model_scenes.adopt_cache, directory=str(home.cache)).ok
    answer = home.run(strict=True)
    assert answer.ok and answer.hits == WARM and not home.quarantined, answer


def test_cache_of_stock_can_be_adopted_after_a_start_too(home):
    """What was quarantined then has been made anew in its place, and needs no adopting."""
    home.run(stock=True)
    home.run()
    assert home.run(model_scenes.adopt_cache, directory=str(home.cache)).ok
    for path in home.aot_entries + home.fx_entries:
        assert seal.split_unverified(path.read_bytes()) is not None
    answer = home.run(strict=True)
    assert answer.ok and answer.hits == WARM, answer


def test_entries_of_stock_are_hit_where_private_ones_are_trusted(home):
    home.run(stock=True)
    home.base.chmod(0o700)
    answer = home.run(env={"SAFECACHE_TRUST": "private"})
    assert answer.ok and answer.hits == WARM and answer.stats["accepted as private"] == 3, answer


def test_entries_of_a_lost_key_are_hit_where_private_ones_are_trusted(warm):
    shutil.rmtree(warm.keys)
    answer = warm.run(env={"SAFECACHE_TRUST": "private"})
    assert answer.ok and answer.hits == WARM and answer.warnings == [], answer


@pytest.mark.parametrize("where", ["cache", "entry"])
def test_private_trust_refuses_what_others_can_write(home, where):
    home.run(stock=True)
    exposed = [home.cache] if where == "cache" else home.aot_entries + home.fx_entries
    for path in exposed:
        path.chmod(0o777)
    answer = home.run(env={"SAFECACHE_TRUST": "private"})
    assert answer.ok and answer.result["aot"]["hit"] == 0 and answer.stats["not private"] == 3, answer
    for path in exposed:
        path.chmod(0o755)
    assert home.run(model_scenes.adopt_cache, directory=str(home.cache)).ok
    again = home.run(env={"SAFECACHE_TRUST": "private"}, strict=True)
    assert again.ok and again.hits == WARM and again.stats["verified"] >= 3, again


def test_adopted_entries_are_hit(home):
    home.run(stock=True)
    command = [sys.executable, "-m", "safecache", "adopt", str(home.cache)]
    environment = home.environment | {"PYTHONPATH": str(SOURCE), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("4 files sealed"), done
    answer = home.run()
    assert answer.ok and answer.hits == WARM and answer.warnings == [], answer
    assert home.run(stock=True).hits == WARM


def of_entries(stats):
    return {name: number for name, number in stats.items() if not name.startswith(("code ", "aot ", "fx "))}


def test_cold_and_warm_in_fresh_interpreters(home):
    """The main job with nothing shared: no zygote, no fork."""
    code = (
        f"import sys; sys.path.insert(0, {str(SOURCE / 'tests')!r})\n"
        "import json, safecache\nfrom scenes import model_scenes\n"
        "print(json.dumps([model_scenes.compile_model(), safecache.stats()]))"
    )
    answers = []
    for run in ("cold", "warm"):
        # Precompiled headers lie in the temporary directory, sealed by the key of whoever was first there.
        environment = home.environment | {"TMPDIR": str(home.base), "_SAFECACHE_RUN": run}
        done = python(code, env=environment, timeout=280)
        assert done.returncode == 0, done.stderr
        answers.append(json.loads(done.stdout.splitlines()[-1]))
    (cold, cold_stats), (warm, warm_stats) = answers
    assert cold["aot"]["saved"] == 1 and of_entries(cold_stats) == {"sealed": 3, "saved": 3}
    assert (warm["aot"]["hit"], warm["fx"]["hit"]) == WARM and of_entries(warm_stats) == {"verified": 3}
    for run, stats in (("cold", cold_stats), ("warm", warm_stats)):
        told = run_summary.summarise(run_summary.read_unverified(str(home.cache)), run)
        counts = {label: number for label, number in told.counts.items() if label in run_summary.LABELS}
        assert counts == {name: number for name, number in stats.items() if name.startswith(("aot ", "fx "))}
        assert len(told.by_process) == 1 and sum(counts.values()) == 3
        assert len(told.missed) == {"cold": 3, "warm": 0}[run]


def test_seal_tells_where_an_entry_came_from(warm, zygote):
    key = keyring.load(None, str(warm.base / "config"))
    for path in warm.aot_entries:
        verdict = seal.verify(path.read_bytes(), Kind.AOT_ENTRY, path.parent.name, key.find)
        assert verdict.reason is None
        assert verdict.provenance["torch"] == zygote.torch
        assert set(verdict.provenance) == {"torch", "triton", "python", "machine", "safecache", "gpu", "omitted"}
        assert str(warm.base) not in str(verdict.provenance)


def test_write_atomic_does_and_raises_what_that_of_stock_torch_does(home):
    answers = [
        home.run(model_scenes.write_atomically, directory=str(home.base / who), stock=who == "stock")
        for who in ("stock", "ours")
    ]
    assert all(answer.ok for answer in answers), answers
    assert answers[0].result == answers[1].result and "IsADirectoryError" in answers[0].result, answers
