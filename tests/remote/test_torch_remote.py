"""Torch's own remote caches, on a Redis of its own: verified as ever, and no server holds a compile up or fails it."""

from __future__ import annotations

import json
import shutil
import time

import pytest
from conftest import WARM
from faults import damage, hostile
from scenes import artifact_scenes, model_scenes

from .conftest import each_way, port_of

pytest.importorskip("redis")


def at(port):
    return {"TORCHINDUCTOR_REDIS_URL": f"redis://127.0.0.1:{port}/0"}


def compile_on(home, port, **rest):
    answer = home.run(model_scenes.compile_with_redis, env=at(port), **rest)
    assert answer.ok, answer
    return answer


@pytest.fixture(scope="module")
def first(new_home, one_redis):
    """A host that has compiled, and what it has sent."""
    one_redis.flush()
    home, client = new_home(), one_redis.client()
    cold = compile_on(home, one_redis.port)
    assert cold.hits == (0, 0) and not cold.warnings, cold
    yield home, {key: client.get(key) for key in client.scan_iter()}
    shutil.rmtree(home.base, ignore_errors=True)


@pytest.fixture
def host(first, new_home):
    """Another machine, with the keys of the first."""

    def new():
        other = new_home()
        shutil.copytree(first[0].keys, other.keys)
        return other

    return new


@pytest.fixture
def filled(first, server):
    """The server, with what the first host has sent."""
    server.mset(first[1])
    return server


def test_what_one_host_compiles_another_hits(host, filled):
    warm = compile_on(host(), port_of(filled))
    assert warm.hits == WARM and not warm.warnings and not warm.torch_warnings, warm


def test_stock_torch_hits_what_we_have_sent(host, filled):
    stock = compile_on(host(), port_of(filled), stock=True)
    assert stock.hits == WARM, stock


def test_store_that_stock_torch_filled_is_refused_by_name_and_healed(home, host, server):
    compile_on(home, port_of(server), stock=True)
    assert server.dbsize()
    strict = host().run(model_scenes.compile_with_redis, env=at(port_of(server)), strict=True)
    assert "EntryRefusedError" in strict.errors, strict
    assert any(f"redis://127.0.0.1:{port_of(server)}" in text for text in strict.messages), strict
    ours = compile_on(host(), port_of(server))
    assert ours.hits == (0, 0) and ours.warnings, ours
    for line in ours.warnings:
        assert f"in the remote cache redis://127.0.0.1:{port_of(server)}/0 [" in line, line
        assert "no seal: it was written without safecache" in line and "[unsealed]" in line, line
    assert {line.partition(" entry ")[0].rpartition("safecache: refused ")[2] for line in ours.warnings} == {
        "AOTAutograd",
        "FX graph",
    }
    warm = compile_on(host(), port_of(server))
    assert warm.hits == WARM and not warm.warnings, warm


def test_planted_values_are_never_unpickled(first, host, filled):
    other = host()
    marker = hostile.marker(other)
    filled.mset(dict.fromkeys(first[1], json.dumps(damage.remote_value(hostile.hostile(other)))))
    answer = compile_on(other, port_of(filled))
    assert answer.hits == (0, 0) and answer.warnings and not marker.exists(), answer
    healed = compile_on(host(), port_of(filled))
    assert healed.hits == WARM and not healed.warnings, healed


@pytest.mark.parametrize("value", [b"", b"\x00\xff", b"[]", b'{"data": 7}', b'"text"'])
def test_values_that_are_none_are_misses_and_heal(first, host, filled, value):
    filled.mset(dict.fromkeys(first[1], value))
    answer = compile_on(host(), port_of(filled))
    assert answer.hits == (0, 0), answer
    assert value not in filled.mget(first[1])


@each_way()
def test_server_that_fails_is_asked_twice_and_fails_no_compile(home, failing, strict):
    """Once to read, and once to write: after that it is left alone."""
    answer = compile_on(home, failing.port, times=2, strict=strict)
    assert answer.stats["remote unavailable"] == len(answer.warnings) == 2 and failing.asked <= 2, (
        failing.asked,
        answer,
    )
    assert all(f"127.0.0.1:{failing.port}" in line for line in answer.warnings), answer
    assert answer.hits == WARM, "the second time, from the local cache"


def test_full_server_keeps_nothing_and_fails_nothing(home, new_redis):
    answer = compile_on(home, new_redis("--maxmemory", "1").port)
    assert answer.hits == (0, 0) and len(answer.warnings) == 1 and "OutOfMemory" in answer.warnings[0], answer


def test_replica_that_cannot_be_written_still_serves(host, filled, new_redis):
    """What it lacks is not sent to it; what it has is hit."""
    filled.config_set("repl-diskless-sync-delay", 0)
    replica = new_redis("--replicaof", "127.0.0.1", str(port_of(filled))).client()
    for _ in range(1000):
        if replica.info("replication")["master_link_status"] == "up":
            break
        time.sleep(0.02)
    warm = compile_on(host(), port_of(replica))
    assert warm.hits == WARM and not warm.warnings, warm


def test_replica_that_lacks_it_is_not_written_and_fails_nothing(home, new_redis):
    answer = compile_on(home, new_redis("--replicaof", "127.0.0.1", "1").port)
    assert answer.hits == (0, 0) and len(answer.warnings) == 1, answer
    assert "cannot be written [remote unavailable]: ReadOnly" in answer.warnings[0], answer


def test_password_is_used_and_never_said(home, new_home, new_redis):
    port = new_redis("--requirepass", "a-secret").port
    right = {"TORCHINDUCTOR_REDIS_URL": f"redis://:a-secret@127.0.0.1:{port}/0"}
    wrong = {"TORCHINDUCTOR_REDIS_URL": f"redis://:another-secret@127.0.0.1:{port}/0"}
    cold = home.run(model_scenes.compile_with_redis, env=right)
    assert cold.ok and not cold.warnings, cold
    answer = new_home().run(model_scenes.compile_with_redis, env=wrong)
    assert answer.ok and answer.warnings, answer
    assert "secret" not in "".join(answer.warnings + answer.torch_warnings), answer


def test_value_larger_than_may_be_fetched_is_a_miss(host, filled):
    env = at(port_of(filled)) | {"SAFECACHE_REMOTE_MAX_BYTES": "1000"}
    answer = host().run(model_scenes.compile_with_redis, env=env)
    assert answer.ok and answer.hits == (0, 0), answer
    assert len(answer.warnings) == 1 and "raise max_bytes in" in answer.warnings[0], answer


@pytest.mark.parametrize("bundle", [b"\x00\xff", b"[]", b'{"x.best_config": {"time_saved_ns": "long"}}'])
def test_bundle_of_autotuning_results_that_is_none_is_as_good_as_none(home, server, bundle):
    answer = home.run(artifact_scenes.load_bundle_from_redis, env=at(port_of(server)), bundle=bundle.hex())
    assert answer.ok and not answer.result, answer


@pytest.mark.parametrize("failing", ["silent", "garbage"], indirect=True)
def test_results_of_autotuning_from_a_server_that_fails(home, failing):
    pytest.importorskip("triton")
    env, filename = at(failing.port), str(home.cache / "ab" / "kernel.py")
    answer = home.run(artifact_scenes.tune_with_redis, env=env, filename=filename)
    assert answer.ok and answer.result == {"first": None, "second": 128}, answer
    assert len(answer.warnings) == 2 and failing.asked <= 2, (failing.asked, answer)


def test_results_of_autotuning_reach_another_host_and_planted_ones_are_refused(host, server):
    pytest.importorskip("triton")

    def tune():
        home = host()
        filename = str(home.cache / "ab" / "kernel.py")
        return home.run(artifact_scenes.tune_with_redis, env=at(port_of(server)), filename=filename)

    one, other = tune(), tune()
    assert one.ok and one.result == {"first": None, "second": 128} and not one.warnings, one
    assert other.ok and other.result["first"] == 128 and not other.warnings, other
    for key in list(server.scan_iter()):
        server.set(key, json.dumps(json.loads(server.get(key)) | {"XBLOCK": 7, "found_by_coordesc": True}))
    answer = tune()
    assert answer.ok and answer.result["first"] is None, answer
    assert f"in the remote cache redis://127.0.0.1:{port_of(server)}/0" in answer.warnings[0], answer
