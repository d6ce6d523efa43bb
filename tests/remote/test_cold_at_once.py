"""Hosts that start cold at the same time, with one remote: one of them compiles."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
import time

import pytest
from conftest import SOURCE
from helpers.together import INFERENCE, Together, said, total

from safecache.flights import fleet, scopes
from safecache.remote import client, sender, stores
from safecache.reporting.kinds import Kind

from .conftest import make_bucket
from .test_two_hosts import same_keys

KIND, KEY = Kind.FX_ENTRY, "ahost"


@pytest.fixture
def hosts(home, new_home):
    """Two homes with one key."""
    code = "from safecache.signing import keyring; keyring.sealing_key()"
    subprocess.run([sys.executable, "-c", code], env=os.environ | home.environment, cwd=SOURCE, check=True)
    return [home, same_keys(home, new_home)]


def test_two_hosts_compile_once(home, hosts, redis_server):
    with Together(home, 0, INFERENCE, homes=hosts, SAFECACHE_REMOTE=redis_server.url) as hosts:
        hosts.begin()
        answers = hosts.answers()
    assert total(answers, "fxgraph_cache_miss") == 1 and not said(answers), answers
    assert len({answer["y"] for answer in answers}) == 1
    assert not list(redis_server.client().scan_iter("*leases*"))


def test_store_without_redis(home, hosts, s3):
    make_bucket("flights", s3)
    env = s3 | {"SAFECACHE_REMOTE": "s3://flights/cache"}
    with Together(home, 0, INFERENCE, homes=hosts, **env) as hosts:
        hosts.begin()
        answers = hosts.answers()
    assert total(answers, "fxgraph_cache_miss") == 1 and not said(answers), answers


@pytest.fixture
def root(tmp_path):
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache"


@pytest.fixture
def remote(redis_server, settings):
    """This process is a host with this remote."""
    settings(SAFECACHE_REMOTE=redis_server.url)
    client.reset()
    yield redis_server.client()
    assert sender.flush(20) == 0
    fleet.reset()


@pytest.fixture
def impatient(monkeypatch):
    """What is not renewed lapses soon."""
    monkeypatch.setattr(fleet, "LAPSE", 1.0)


def take(most=60.0):
    return fleet.take(KIND, KEY, most)


def leases(remote):
    return list(remote.scan_iter("*leases*"))


def test_one_host_has_it_until_all_is_sent(remote):
    claim, waited = take()
    assert claim is not None and not waited and len(leases(remote)) == 1
    assert take(0.5)[0] is None
    claim.release()
    assert sender.flush(20) == 0 and not leases(remote)


def test_next_host_takes_it_when_it_is_released(remote):
    claim, _ = take()
    threading.Timer(1.0, claim.release).start()
    again, waited = take()
    assert again is not None and waited > 0.5
    again.release()


def test_claim_is_renewed_for_as_long_as_it_is_held(remote, impatient, monkeypatch):
    monkeypatch.setattr(fleet, "_RENEWAL", 0.1)
    claim, _ = take()
    assert take(3.0)[0] is None
    claim.release()


def test_host_that_has_died_is_succeeded_by_one(remote, impatient):
    dead, _ = take()
    fleet.reset()  # nobody renews it
    found = []
    waiting = [threading.Thread(target=lambda: found.append(take(10.0))) for _ in range(3)]
    for each in waiting:
        each.start()
    while not found:
        time.sleep(0.01)
    # The others wait for the successor, which does not end before they have given up.
    for each in waiting:
        each.join(60)
    (claim,) = (each for each, _ in found if each is not None)
    dead.release()  # it was only frozen: what its successor has stays
    assert sender.flush(20) == 0 and len(leases(remote)) == 1
    claim.release()


@pytest.mark.parametrize("content", [b"x", b"\xff" * 1_000_000, b"ended "])
def test_forged_lease_lapses(remote, impatient, content):
    remote.set(fleet._name(KIND, KEY), content)
    claim, waited = take()
    assert claim is not None and waited > 0.5
    claim.release()


def test_left_mark_of_an_end_keeps_nobody(remote):
    remote.set(fleet._name(KIND, KEY), b"ended")
    claim, _ = take()
    assert claim is not None
    claim.release()


def test_failing_remote_is_done_without(failing, settings, root):
    settings(SAFECACHE_REMOTE=f"redis://127.0.0.1:{failing.port}/0", SAFECACHE_REMOTE_TIMEOUT=0.3)
    client.reset()
    assert take()[0] is None
    with scopes.scope(KIND, math.inf):
        assert scopes.enter(KIND, KEY, str(root)) is not None


@pytest.mark.parametrize("variable", ["SAFECACHE_REMOTE_READ_ONLY", "SAFECACHE_SINGLE_FLIGHT"])
def test_host_that_sends_nothing_takes_none(remote, settings, root, variable):
    settings(**{variable: int(variable.endswith("ONLY"))})
    with scopes.scope(KIND, math.inf):
        scopes.enter(KIND, KEY, str(root))
    assert not leases(remote)


def test_kernels_are_not_worth_a_round_trip(remote, root):
    with scopes.scope(Kind.KERNEL, math.inf):
        assert scopes.enter(Kind.KERNEL, KEY, str(root)) is not None
    assert not leases(remote)


def test_command_that_lists_the_store_knows_no_leases(remote):
    claim, _ = take()
    listed = [each.name for each in client.for_sending().names(stores.prefix())]
    assert not [name for name in listed if "leases" in name], listed
    claim.release()
