"""What the remote gives and costs is counted: in the process, in the run's journal, in metrics, and for a person."""

from __future__ import annotations

import json
import time

import pytest
from conftest import python
from helpers import filled, in_process

from safecache import history, session
from safecache.cli import stats
from safecache.history import run_summary
from safecache.places.refs import Ref
from safecache.remote import client, sender, stores
from safecache.remote.client import Unavailable
from safecache.reporting import events
from safecache.reporting.kinds import OF_REMOTE, Count, Kind
from safecache.store import bundles

run = in_process.run

pytest.importorskip("zstandard")
pytest.importorskip("redis")


@pytest.fixture
def cache(tmp_path, settings, redis_server, monkeypatch):
    """A cache, a remote, and a run that this process belongs to."""
    cache = filled.fill(tmp_path / "cache")
    monkeypatch.setenv("_SAFECACHE_RUN", "20270101T000000-0123abcd")
    monkeypatch.setattr(history._journal, "now", history._Journal())
    settings(SAFECACHE_REMOTE=redis_server.url, TORCHINDUCTOR_CACHE_DIR=cache)
    session.reset()
    return cache


def counted():
    counters = events.read_counters()
    return {count: counters[count.value] for count in OF_REMOTE if count.value in counters}


def graph(cache):
    return Ref(Kind.FX_ENTRY, filled.GRAPH, str(cache))


def shared(cache, tmp_path):
    """Send a graph, look it up as another process with a cache of its own, and then one that is not there."""
    sent = sender.send(client.get_background(), graph(cache))
    there = graph(tmp_path / "other")
    assert bundles.fetch(there) and not bundles.fetch(there._replace(key=filled.key("f", "none")))
    return sent.size


def test_what_is_sent_and_fetched_is_counted(cache, tmp_path):
    size = shared(cache, tmp_path)
    found = counted()
    assert (found[Count.REMOTE_SENT], found[Count.REMOTE_HIT], found[Count.REMOTE_MISS]) == (1, 1, 1)
    assert found[Count.REMOTE_GIVEN] == found[Count.REMOTE_RECEIVED] == size
    assert found[Count.REMOTE_ASKED] == 2 and found[Count.REMOTE_WAITED] > 0
    assert not found.keys() & {Count.REMOTE_UNSENT, Count.REMOTE_LEFT}


def test_what_is_done_in_the_background_is_no_waiting(cache):
    sender.send(client.get_background(), graph(cache))
    assert not counted().keys() & {Count.REMOTE_ASKED, Count.REMOTE_WAITED}


def test_being_left_alone_is_counted(cache, settings):
    settings(SAFECACHE_REMOTE="redis://127.0.0.1:1/0")
    for _ in range(3):
        with pytest.raises(Unavailable):
            client.current().read_unverified(["name"])
    found = counted()
    assert (found[Count.REMOTE_LEFT], found[Count.REMOTE_ASKED]) == (1, 1)


def page(cache):
    lines = run_summary.read_unverified(str(cache))
    return stats.render_page([str(cache)], lines, run_summary.summarise(lines, run_summary.LAST))


def test_run_tells_of_all_its_processes(cache, tmp_path, run):
    size = shared(cache, tmp_path)
    history._end_journal()
    said = json.loads(run("stats", cache, "--json").out)["remote"]
    assert said["remote_hit"] == said["remote_miss"] == said["remote_sent"] == 1
    assert said["remote_given"] == said["remote_received"] == size and said["remote_unsent"] == 0
    [line] = [line for line in run("stats", cache).lines if line.startswith("remote: ")]
    assert "1 group fetched" in line and "1 not there" in line and "2 requests" in line and "left alone" not in line
    assert "1 group fetched" in page(cache)


def test_without_a_remote_nothing_is_said_of_it(cache, run):
    history.count("fx hit", str(cache))
    history._end_journal()
    assert not any("remote" in line for line in run("stats", cache).lines)
    assert "Remote cache" not in page(cache)


def test_journal_takes_no_count_of_the_remote_that_is_none(cache):
    history.count("fx hit", str(cache))
    history._end_journal()
    [path] = (cache / ".safecache" / "journal").iterdir()
    line = json.loads(path.read_text())
    for counts in ({"remote hit": -1}, {"remote hit": "1"}, {"remote hits": 1}):
        path.write_text(json.dumps(line | {"counts": counts}) + "\n")
        assert run_summary.read_unverified(str(cache)) == []
    path.write_text(json.dumps(line | {"counts": {"remote hit": 3}}) + "\n")
    assert run_summary.summarise(run_summary.read_unverified(str(cache)), run_summary.LAST).counts == {"remote hit": 3}


def test_command_that_belongs_to_no_run_leaves_no_journal(cache, run, monkeypatch):
    monkeypatch.delenv("_SAFECACHE_RUN")
    run("push", cache)
    history._end_journal()
    assert counted()[Count.REMOTE_SENT] == filled.BUNDLES
    assert not (cache / ".safecache" / "journal").exists()


def test_metrics_have_it(tmp_path):
    pytest.importorskip("prometheus_client")
    code = """
import safecache
from safecache.remote import client
from safecache.reporting.kinds import Count
import safecache.metrics
from prometheus_client import CollectorRegistry, generate_latest
registry = CollectorRegistry()
safecache.metrics.register(registry)
for what, number in {Count.REMOTE_HIT: 2, Count.REMOTE_GIVEN: 5000, Count.REMOTE_WAITED: 250_000, Count.REMOTE_LEFT: 1}.items():
    client.count(what, number)
print(generate_latest(registry).decode())
"""
    places = {"XDG_CONFIG_HOME": str(tmp_path), "TMPDIR": str(tmp_path), "SAFECACHE_METRICS": "1"}
    done = python(code, env=places)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("safecache_")]
    assert sorted(lines) == [
        'safecache_remote_bytes_total{direction="sent"} 5000.0',
        'safecache_remote_groups_total{outcome="fetched"} 2.0',
        "safecache_remote_left_alone_total 1.0",
        "safecache_remote_wait_seconds_total 0.25",
    ]


def test_everything_that_is_counted_has_a_metric():
    metrics = pytest.importorskip("safecache.metrics")
    assert metrics._REMOTE.keys() == {count.value for count in OF_REMOTE}


def test_what_is_slow_to_tell_what_it_lacks_is_written_all_the_same(settings, monkeypatch):
    """A cold start asks for much that is not there: those who come after it have to find what it has made."""
    settings(SAFECACHE_REMOTE="redis://there/0")
    moments = [0.0]

    class Slow:
        def read_unverified(self, names):
            moments[0] += 0.4
            return {}

        def find_sizes(self, names):
            return {}

        def close(self):
            """Nothing is open."""

    monkeypatch.setattr(client.time, "monotonic", lambda: moments[0])
    monkeypatch.setattr(stores, "make_store", lambda url, terms: Slow())
    for _ in range(3):
        client.current().read_unverified(["name"])
    with pytest.raises(Unavailable):
        client.current().read_unverified(["name"])
    assert not client.current().can_read() and counted()[Count.REMOTE_LEFT] == 1
    assert client.get_background().find_sizes(["name"]) == {}
    moments[0] += client.PATIENCE
    assert client.current().read_unverified(["name"]) == {}


def test_time_that_nobody_waits_is_not_wasted(settings, monkeypatch):
    settings(SAFECACHE_REMOTE="redis://there/0", SAFECACHE_REMOTE_TIMEOUT="0.001")

    class Slow:
        def read_unverified(self, names):
            time.sleep(0.02)
            return {}

        def close(self):
            """Nothing is open."""

    monkeypatch.setattr(stores, "make_store", lambda url, terms: Slow())
    for _ in range(3):
        client.get_background().read_unverified(["name"])
    assert client.current().can_read() and not counted()
