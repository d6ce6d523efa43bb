"""Hosts that start cold at the same time, with one remote: one of them compiles."""

from __future__ import annotations

import logging
import math
import os
import queue
import secrets
import subprocess
import sys
import threading
import time

import pytest
from conftest import SOURCE, Answer
from helpers.together import said

from safecache import session, single_flight
from safecache.places.refs import Ref
from safecache.remote import client, sender, stores
from safecache.remote import exchange as remote_leases
from safecache.reporting import waits
from safecache.reporting.kinds import Kind
from safecache.signing import heartbeats, side_records

from . import scenes
from .conftest import make_bucket
from .test_two_hosts import same_keys

KIND, KEY = Kind.FX_ENTRY, "ahost"


@pytest.fixture
def hosts(home, new_home):
    """Two homes with one key."""
    code = "from safecache.signing import keyring; keyring.sealing_key()"
    subprocess.run([sys.executable, "-c", code], env=os.environ | home.environment, cwd=SOURCE, check=True)
    return [home, same_keys(home, new_home)]


def compile_once(hosts, **environment):
    """Of the forward and the backward graph, what one of them has compiled the other hits."""
    answer = hosts[0].run(scenes.compile_on_hosts, environments=[host.environment | environment for host in hosts])
    assert answer.ok, answer
    answers = [Answer(each) for each in answer.result]
    assert all(each.ok and not said([vars(each)]) for each in answers), answers
    assert [sum(each.result["fx"][name] for each in answers) for name in ("miss", "hit")] == [2, 2], answers


def test_two_hosts_compile_once(hosts, redis_server):
    compile_once(hosts, SAFECACHE_REMOTE=redis_server.url)
    assert not list(redis_server.client().scan_iter("*leases*"))


def test_store_without_redis(hosts, s3):
    make_bucket("flights", s3)
    compile_once(hosts, **s3, SAFECACHE_REMOTE="s3://flights/cache")


@pytest.fixture
def root(tmp_path):
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache"


@pytest.fixture
def remote(redis_server, settings):
    """This process is a host with this remote."""
    settings(SAFECACHE_REMOTE=redis_server.url)
    session.reset()
    yield redis_server.client()
    assert sender.flush(20) == 0
    remote_leases._claims.reset()


def take(most=60.0):
    """As another host than any before."""
    heartbeats._state.now.process = secrets.token_hex(16)
    return remote_leases.acquire(Ref(KIND, KEY), most)


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


def test_claim_is_renewed_for_as_long_as_it_is_held(remote):
    claim, _ = take()
    assert take(4.0)[0] is None and waits.get_remaining_seconds(300) < 297
    claim.release()


def test_host_that_has_died_is_succeeded_by_one(remote):
    dead, _ = take()
    remote_leases._claims.reset()  # nobody renews it
    claim, waited = take()
    assert claim is not None and waits.UNPROVEN <= waited < 3 * waits.UNPROVEN
    assert take(4.0)[0] is None, "the successor lives"
    dead.release()  # it was only frozen: what its successor has stays
    assert sender.flush(20) == 0 and len(leases(remote)) == 1
    claim.release()


def test_host_that_has_died_delays_once(remote):
    names = [f"f{number}" for number in range(6)]
    heartbeats._state.now.process = "dead"
    for name in names:
        remote_leases.acquire(Ref(KIND, name), 1.0)
    remote_leases._claims.reset()
    heartbeats._state.now.process = "alive"
    began = time.monotonic()
    claims = [remote_leases.acquire(Ref(KIND, name), 60.0)[0] for name in names]
    assert all(claims) and time.monotonic() - began < 3 * waits.UNPROVEN
    for claim in claims:
        claim.release()


def sealed(subject=None, **stated):
    now = {"process": "x", "count": 1, "at": time.time(), "began": time.time()}
    return side_records.seal_record(
        subject or remote_leases._make_subject(remote_leases._name_lease(Ref(KIND, KEY))), now | stated
    )


FORGED = {
    "text": lambda: b"x",
    "large": lambda: b"\xff" * 1_000_000,
    "almost ended": lambda: b"ended ",
    "of an earlier release": lambda: b"0123456789abcdef0123456789abcdef 3",
    "unsealed": lambda: b'{"process": "x", "count": 1, "at": 0, "began": 0}',
    "of another key": lambda: sealed("lease other"),
    "old": lambda: sealed(at=time.time() - 61),
    "later": lambda: sealed(at=time.time() + 61),
}


@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED)
def test_forged_lease_delays_nobody(remote, forge):
    remote.set(remote_leases._name_lease(Ref(KIND, KEY)), forge())
    claim, waited = take()
    assert claim is not None and waited < waits.UNPROVEN
    claim.release()


def test_owner_of_the_remote_who_replays_leases_delays_by_the_limit(remote, settings, caplog):
    """Each of them was recorded just now, and comes again and again under every key."""
    settings(SAFECACHE_SINGLE_FLIGHT_WAIT=3)
    names = [f"f{number}" for number in range(12)]
    recorded = {remote_leases._name_lease(Ref(KIND, name)): [] for name in names}
    for full in recorded:
        for number in range(4):
            recorded[full].append(sealed(remote_leases._make_subject(full), process=full, count=number + 1))
    stop = threading.Event()

    def replay():
        while not stop.is_set():
            for full, contents in recorded.items():
                remote.set(full, contents[int(time.monotonic() * 2) % 4])
            time.sleep(0.05)

    thread = threading.Thread(target=replay)
    thread.start()
    began = time.monotonic()
    try:
        with caplog.at_level(logging.WARNING):
            for name in names:
                remote_leases.acquire(Ref(KIND, name), waits.get_remaining_seconds(3))
    finally:
        stop.set()
        thread.join()
    assert time.monotonic() - began < 3 + 2 * waits.UNPROVEN
    assert waits.get_remaining_seconds(3) == 0 and caplog.text.count("in vain for other processes") == 1


def test_claim_that_cannot_be_queued_is_renewed_no_more(remote, monkeypatch):
    claim, _ = take()
    monkeypatch.setattr(sender._sender.now.jobs, "put_nowait", lambda _: (_ for _ in ()).throw(queue.Full))
    claim.release()
    monkeypatch.undo()
    assert not remote_leases._claims.now.renewals._held
    (name,) = leases(remote)
    content = remote.get(name)
    time.sleep(2.5)
    assert remote.get(name) == content
    sender._sender.reset()


def test_process_without_a_key_takes_no_lease(remote, monkeypatch):
    monkeypatch.setattr(side_records, "seal_record", lambda *_: None)
    assert take(1.0)[0] is None and not leases(remote)


def test_left_mark_of_an_end_keeps_nobody(remote):
    remote.set(remote_leases._name_lease(Ref(KIND, KEY)), b"ended")
    claim, _ = take()
    assert claim is not None
    claim.release()


def test_failing_remote_is_done_without(failing, settings, root):
    settings(SAFECACHE_REMOTE=f"redis://127.0.0.1:{failing.port}/0", SAFECACHE_REMOTE_TIMEOUT=0.3)
    client._state.reset()
    assert take()[0] is None
    with single_flight.compile_scope(KIND, math.inf):
        assert single_flight.wait_or_lead(Ref(KIND, KEY, str(root))) is not None


@pytest.mark.parametrize("variable", ["SAFECACHE_REMOTE_READ_ONLY", "SAFECACHE_SINGLE_FLIGHT"])
def test_host_that_sends_nothing_takes_none(remote, settings, root, variable):
    settings(**{variable: int(variable.endswith("ONLY"))})
    with single_flight.compile_scope(KIND, math.inf):
        single_flight.wait_or_lead(Ref(KIND, KEY, str(root)))
    assert not leases(remote)


def test_kernels_are_not_worth_a_round_trip(remote, root):
    with single_flight.compile_scope(Kind.KERNEL, math.inf):
        assert single_flight.wait_or_lead(Ref(Kind.KERNEL, KEY, str(root))) is not None
    assert not leases(remote)


def test_command_that_lists_the_store_knows_no_leases(remote):
    claim, _ = take()
    listed = [each.name for each in client.get_background().list_names(stores.make_prefix())]
    assert not [name for name in listed if "leases" in name], listed
    claim.release()
