"""Triton's own remote cache, as its documentation turns it on: kernels travel with records, and no server holds it up."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest
from faults.trojan import CONSTRUCTOR
from scenes import kernel_scenes

from .conftest import each_way, port_of

pytest.importorskip("triton")
pytest.importorskip("redis")

RECORD = b".safecache-record"
EVIL = b"planted"


def through(port, **environment):
    """The variables that turn Triton's remote cache on."""
    return {
        "TRITON_CACHE_MANAGER": "triton.runtime.cache:RemoteCacheManager",
        "TRITON_REMOTE_CACHE_BACKEND": "triton.runtime.cache:RedisRemoteCacheBackend",
        "TRITON_REDIS_HOST": "127.0.0.1",
        "TRITON_REDIS_PORT": str(port),
        **environment,
    }


@pytest.fixture
def host(home, new_home):
    """Another machine: a home with caches of its own, and the keys of the first unless ``stranger``."""

    def new(*, stranger=False):
        other = new_home()
        if not stranger:
            shutil.copytree(home.keys, other.keys)
        return on(other)

    return new


def on(home):
    home.environment["TRITON_CACHE_DIR"] = str(home.base / "triton")
    return home


@pytest.fixture
def first(home):
    return on(home)


def values(server):
    return {key: server.get(key) for key in server.scan_iter()}


def name_in(key):
    return key.rpartition(b":")[2]


def compile_on(home, port, **rest):
    answer = home.run(kernel_scenes.compile_kernel, env=through(port), **rest)
    assert answer.ok, answer
    return answer


def test_what_one_host_compiles_another_uses(first, host, server):
    cold = compile_on(first, port_of(server))
    assert cold.result["compiled"] and not cold.warnings, cold
    other = host()
    warm = compile_on(other, port_of(server))
    assert not warm.result["compiled"] and warm.result["cubin"] == cold.result["cubin"] and not warm.warnings, warm
    # It has come with records, which the remote's next user in a new process finds here too.
    server.flushall()
    alone = other.run(kernel_scenes.compile_kernel)
    assert alone.ok and not alone.result["compiled"] and not alone.warnings, alone


@pytest.mark.parametrize("isolate", ["1", "workers"])
def test_kernel_that_a_worker_compiles_is_sent_and_used(first, host, server, isolate):
    env = through(port_of(server), SAFECACHE_ISOLATE=isolate)
    cold = first.run(kernel_scenes.compile_kernel, env=env)
    assert cold.ok and not cold.warnings, cold
    warm = compile_on(host(), port_of(server))
    assert not warm.result["compiled"] and warm.result["cubin"] == cold.result["cubin"] and not warm.warnings, warm


def test_group_is_asked_for_with_its_record_in_two_round_trips(first, host, server):
    compile_on(first, port_of(server))
    other = host()
    server.config_resetstat()
    warm = compile_on(other, port_of(server))
    assert not warm.result["compiled"], warm
    commands = server.info("commandstats")
    assert "cmdstat_set" not in commands, commands
    assert {key.rpartition(b":")[2] for key in server.scan_iter() if not key.endswith(RECORD)} >= {
        b"triton_poi_scale.cubin",
        b"__grp__triton_poi_scale.json",
    }


def test_stock_triton_reads_what_is_sent(first, host, server):
    cold = compile_on(first, port_of(server))
    stock = host().run(kernel_scenes.compile_kernel_through_fixed_redis, env=through(port_of(server)), stock=True)
    assert stock.ok and not stock.result["compiled"] and stock.result["cubin"] == cold.result["cubin"], stock


def test_store_that_stock_triton_filled_is_refused_by_name_and_healed(first, host, server):
    env = through(port_of(server))
    stock = first.run(kernel_scenes.compile_kernel_through_fixed_redis, env=env, stock=True)
    assert stock.ok and stock.result["compiled"] and not any(key.endswith(RECORD) for key in server.scan_iter()), stock
    shutil.rmtree(first.base / "triton")
    strict = first.run(kernel_scenes.compile_kernel, env=env, strict=True)
    assert "EntryRefusedError" in strict.errors and f":{port_of(server)}" in strict.messages[0], strict
    ours = compile_on(first, port_of(server))
    assert ours.result["compiled"], ours
    (line,) = ours.warnings
    assert f"Triton's remote cache redis://127.0.0.1:{port_of(server)}" in line, line
    assert "stock Triton" in line and "[unsealed]" in line, line
    warm = compile_on(host(), port_of(server))
    assert not warm.result["compiled"] and not warm.warnings, warm


def test_stranger_says_that_it_lacks_the_key(first, host, server):
    compile_on(first, port_of(server))
    answer = compile_on(host(stranger=True), port_of(server))
    assert answer.result["compiled"] and "[unknown key]" in answer.warnings[0], answer


@pytest.mark.parametrize("which", [b".cubin", b".json", b".ptx", b".cubin" + RECORD, b".json" + RECORD])
def test_planted_content_is_never_used(first, host, server, which):
    cold = compile_on(first, port_of(server))
    for key in list(server.scan_iter()):
        if key.endswith(which):
            server.set(key, EVIL)
    answer = compile_on(host(), port_of(server))
    assert answer.result["cubin"] == cold.result["cubin"], answer
    # The records of a group's files are not needed: that of its list states them.
    assert answer.result["compiled"] is (which != b".cubin" + RECORD), answer
    assert len(answer.warnings) == answer.result["compiled"], answer
    healed = compile_on(host(), port_of(server))
    assert not healed.result["compiled"] and not healed.warnings, healed


def test_kernel_sealed_for_another_key_is_not_used(first, host, server):
    """All of it, with its records, under the names of another kernel."""
    other = first.run(kernel_scenes.compile_kernel, block=256, env=through(port_of(server)))
    theirs = {name_in(key): content for key, content in values(server).items()}
    server.flushall()
    good = compile_on(first, port_of(server))
    assert other.ok and other.result["cubin"] != good.result["cubin"]
    for key in list(server.scan_iter()):
        server.set(key, theirs[name_in(key)])
    answer = compile_on(host(), port_of(server))
    assert answer.result["compiled"] and answer.result["cubin"] == good.result["cubin"], answer
    assert len(answer.warnings) == 1 and "sealed for another cache key" in answer.warnings[0], answer


def test_group_is_of_one_writer(first, host, server):
    """A file that has been sealed for this key, but by another compile than the list was."""
    compile_on(first, port_of(server))
    [key] = [key for key in server.scan_iter() if key.endswith(b".cubin")]
    _, own, name = key.decode().split(":")
    forged = first.run(kernel_scenes.send_file, key=own, name=name, content="of another", env=through(port_of(server)))
    assert forged.ok and server.get(key) == b"of another", forged
    answer = compile_on(host(), port_of(server))
    assert answer.result["compiled"] and "record of its group" in answer.warnings[0], answer


def test_trust_in_private_files_does_not_reach_the_remote(first, server):
    """A private file that lies where the remote's would be published says nothing of what the remote delivers."""
    assert first.run(kernel_scenes.compile_kernel, stock=True).ok
    env = through(port_of(server), SAFECACHE_TRUST="private")
    assert first.run(kernel_scenes.compile_kernel_through_fixed_redis, env=env, stock=True).ok
    for key in list(server.scan_iter()):
        if key.endswith(b".cubin"):
            server.set(key, EVIL)
    answer = first.run(kernel_scenes.compile_kernel, env=env)
    assert answer.ok and bytes.fromhex(answer.result["cubin"]) != EVIL, answer


def test_host_without_a_key_that_seals_replaces_nothing(first, host, server):
    compile_on(first, port_of(server))
    before = values(server)
    reader = host(stranger=True)
    answer = reader.run(kernel_scenes.compile_kernel, env=through(port_of(server), SAFECACHE_KEY_FILE=os.devnull))
    assert answer.ok and answer.result["compiled"], answer
    assert values(server) == before


@each_way()
def test_server_that_fails_is_asked_twice_and_fails_no_compile(first, failing, strict):
    """Once to read, and once to write: after that it is left alone."""
    answer = compile_on(first, failing.port, strict=strict)
    assert answer.result["compiled"] and answer.result["cubin"], answer
    assert answer.stats["remote unavailable"] == len(answer.warnings) == 2 and failing.asked <= 2, (
        failing.asked,
        answer,
    )
    assert all(f"127.0.0.1:{failing.port}" in line for line in answer.warnings), answer
    again = compile_on(first, failing.port)
    assert not again.result["compiled"] and len(again.warnings) == 1, "it is here already"


def test_full_server_keeps_nothing_and_fails_nothing(first, new_redis):
    answer = compile_on(first, new_redis("--maxmemory", "1").port)
    assert answer.result["compiled"] and len(answer.warnings) == 1 and "OutOfMemory" in answer.warnings[0], answer


def test_redis_client_that_is_not_installed_is_named(first):
    answer = first.run(kernel_scenes.compile_kernel_without_redis_client, env=through(1))
    assert answer.ok and answer.result["compiled"], answer
    assert all("pip install redis" in line for line in answer.warnings), answer


def test_module_is_built_by_one_host_and_loaded_by_another(first, host, server):
    env = through(port_of(server))
    built = first.run(kernel_scenes.build_module, env=env)
    assert built.ok and built.result["compiled"] and not built.warnings, built
    loaded = host().run(kernel_scenes.build_module, env=env)
    assert loaded.ok and not loaded.result["compiled"] and not loaded.warnings, loaded


def test_planted_module_is_never_loaded(first, host, server, tmp_path):
    trojan, marker = tmp_path / "trojan.so", tmp_path / "loaded"
    source = f"#include <stdio.h>\n#include <stdlib.h>\n{CONSTRUCTOR}"
    command = ["g++", "-xc++", "-", "-shared", "-fPIC", "-o", str(trojan)]
    subprocess.run(command, input=source, text=True, check=True)
    env = through(port_of(server), TROJAN_MARKER=str(marker))
    assert first.run(kernel_scenes.build_module, env=env).ok
    [key] = [key for key in server.scan_iter() if key.endswith(b".so")]
    server.set(key, trojan.read_bytes())
    answer = host().run(kernel_scenes.build_module, env=env)
    assert answer.ok and answer.result["compiled"] and len(answer.warnings) == 1, answer
    assert not marker.exists()


@pytest.mark.parametrize("evil", ["raises", "nonsense"])
def test_backend_of_somebody_s_own_that_fails(first, evil):
    env = {
        "TRITON_CACHE_MANAGER": "triton.runtime.cache:RemoteCacheManager",
        "TRITON_REMOTE_CACHE_BACKEND": f"scenes.triton_managers:Backend{evil.title()}",
    }
    answer = first.run(kernel_scenes.compile_kernel, env=env)
    assert answer.ok and answer.result["compiled"], answer
    assert answer.warnings and all(f"Backend{evil.title()}" in line for line in answer.warnings), answer
