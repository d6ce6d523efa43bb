"""The client: asked in time or not at all, and left alone after a failure."""

from __future__ import annotations

import threading

import pytest

from safecache.remote import client, stores
from safecache.reporting import events


def test_remote_that_fails_once_is_left_alone_and_asked_again_after_a_while(monkeypatch):
    moments, requests = [0.0], []

    class Store:
        survives_fork = True

        def read_unverified(self, names):
            requests.append(list(names))
            if len(requests) == 1:
                raise ConnectionResetError("by peer")
            return dict.fromkeys(names, b"content")

        def close(self):
            pass

    monkeypatch.setattr(client.time, "monotonic", lambda: moments[0])
    monkeypatch.setattr(stores, "make_store", lambda url, terms: Store())
    remote = client.Client("redis://x/0", stores.Terms(1, 5, 100))
    with pytest.raises(client.Unavailable):
        remote.read_unverified(["a"])
    with pytest.raises(client.Unavailable):
        remote.read_unverified(["a"])
    assert len(requests) == 1 and events.read_counters()["remote unavailable"] == 1
    moments[0] = client.PATIENCE + 1
    assert remote.read_unverified(["a"]) == {"a": b"content"}


def test_slow_remote_that_has_nothing_is_left_alone(monkeypatch):
    """Each answer comes in time, and yet they would cost more than a second in all."""
    moments, requests = [0.0], []

    class Store:
        survives_fork = True

        def read_unverified(self, names):
            requests.append(list(names))
            moments[0] += 0.4
            return {}

        def close(self):
            pass

    monkeypatch.setattr(client.time, "monotonic", lambda: moments[0])
    monkeypatch.setattr(stores, "make_store", lambda url, terms: Store())
    remote = client.Client("redis://x/0", stores.Terms(1, 1, 100))
    for _ in range(3):
        assert not remote.read_unverified(["a"])
    with pytest.raises(client.Unavailable):
        remote.read_unverified(["a"])
    assert len(requests) == 3


@pytest.mark.timeout(20)  # the store hangs for longer
def test_request_that_hangs_is_given_up_and_its_connection_closed(monkeypatch):
    closed = threading.Event()

    class Store:
        survives_fork = True

        def read_unverified(self, names):
            closed.wait(600)

        def close(self):
            closed.set()

    monkeypatch.setattr(stores, "make_store", lambda url, terms: Store())
    remote = client.Client("redis://:hunter2@x/0", stores.Terms(1, 0.05, 100))
    with pytest.raises(client.Unavailable):
        remote.read_unverified(["a"])
    assert closed.wait(20)


def test_remote_that_cannot_be_written_is_read_and_its_password_is_told_to_nobody(monkeypatch, caplog):
    url = "redis://:hunter2@x/0"

    class Store:
        survives_fork = True

        def read_unverified(self, names):
            return dict.fromkeys(names, b"content")

        def write(self, name, content):
            raise PermissionError(f"not by you, says {url}\nand a page of inner state")

        def close(self):
            pass

    monkeypatch.setattr(stores, "make_store", lambda url, terms: Store())
    remote = client.Client(url, stores.Terms(1, 20, 100))
    for _ in range(2):
        with pytest.raises(client.Unavailable):
            remote.write("a", b"content")
    assert remote.read_unverified(["a"]) == {"a": b"content"}
    assert caplog.text.count("cannot be written") == 1
    assert "hunter2" not in caplog.text and "inner state" not in caplog.text
