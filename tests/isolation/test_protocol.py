"""Messages arrive as they were sent, and whatever else arrives is refused for what it is."""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
import time
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from safecache.isolation import protocol
from safecache.isolation.protocol import ProtocolError

FEW = settings(deadline=None, database=None, max_examples=50)
SOME = {"job": {"text": "ä\udcff\n", "number": 1.5, "nothing": None, "list": [1, [2]]}}
LONG = 60.0


@pytest.fixture
def ends():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def arriving(raw: bytes):
    """The message, if it is one, after which the other side closes."""
    ours, theirs = socket.socketpair()
    with ours:
        sender = threading.Thread(target=lambda: (theirs.sendall(raw), theirs.close()))
        sender.start()
        try:
            return protocol.receive(ours, time.monotonic() + LONG)
        finally:
            ours.shutdown(socket.SHUT_RDWR)
            sender.join()


def framed(body: bytes) -> bytes:
    return struct.pack("!I", len(body)) + body


def test_a_message_arrives_as_it_was_sent(ends):
    protocol.send(ends[0], SOME)
    assert protocol.receive(ends[1]) == SOME


def test_messages_sent_together_arrive_one_by_one(ends):
    ends[0].sendall(protocol.encode({"n": 1}) + protocol.encode({"n": 2}))
    assert [protocol.receive(ends[1]), protocol.receive(ends[1])] == [{"n": 1}, {"n": 2}]


def test_a_message_sent_byte_by_byte_arrives(ends):
    def drip():
        for byte in protocol.encode(SOME):
            ends[0].send(bytes([byte]))

    thread = threading.Thread(target=drip)
    thread.start()
    assert protocol.receive(ends[1], time.monotonic() + LONG) == SOME
    thread.join()


def test_the_end_is_no_message(ends):
    ends[0].close()
    assert protocol.receive(ends[1]) is None
    assert protocol.receive_with_descriptors(ends[1]) == (None, [])


def test_descriptors_come_with_their_message_and_no_program_inherits_them(ends):
    read_end, write_end = os.pipe()
    protocol.send(ends[0], {"n": 1}, [write_end])
    protocol.send(ends[0], {"n": 2})
    message, (descriptor,) = protocol.receive_with_descriptors(ends[1])
    assert message == {"n": 1} and not os.get_inheritable(descriptor)
    assert protocol.receive_with_descriptors(ends[1]) == ({"n": 2}, [])
    os.write(descriptor, b"x")
    assert os.read(read_end, 1) == b"x"
    for each in (read_end, write_end, descriptor):
        os.close(each)


def test_descriptors_come_with_a_message_sent_byte_by_byte(ends):
    read_end, write_end = os.pipe()
    first, *others = protocol.encode(SOME)
    socket.send_fds(ends[0], [bytes([first])], [write_end])
    thread = threading.Thread(target=lambda: [ends[0].send(bytes([byte])) for byte in others])
    thread.start()
    message, (descriptor,) = protocol.receive_with_descriptors(ends[1])
    thread.join()
    assert message == SOME and os.path.sameopenfile(descriptor, write_end)
    for each in (read_end, write_end, descriptor):
        os.close(each)


def test_descriptors_of_what_is_no_message_are_closed(ends):
    read_end, write_end = os.pipe()
    socket.send_fds(ends[0], [framed(b"nonsense")], [write_end])
    os.close(write_end)
    with pytest.raises(ProtocolError):
        protocol.receive_with_descriptors(ends[1])
    assert os.read(read_end, 1) == b""
    os.close(read_end)


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"\0\0", id="cut-off-in-its-length"),
        pytest.param(b"\0\0\0\5{}", id="cut-off"),
        pytest.param(framed(b""), id="empty"),
        pytest.param(framed(b"nonsense"), id="nonsense"),
        pytest.param(framed(b"\xff\xfe{}"), id="no-text"),
        pytest.param(framed(b"[1]"), id="a-list"),
        pytest.param(framed(b"1" * 100_000), id="a-number-of-many-digits"),
        pytest.param(framed(b"[" * 1_000_000), id="too-deep"),
        pytest.param(framed(b'{"a": 1} {"b": 2}'), id="two"),
        pytest.param(struct.pack("!I", protocol.MOST_BYTES + 1), id="longer-than-allowed"),
        pytest.param(b"\xff\xff\xff\xff", id="longest"),
    ],
)
def test_what_is_no_message_is_refused(raw):
    with pytest.raises(ProtocolError):
        arriving(raw)


@FEW
@given(st.binary(max_size=200))
def test_whatever_arrives_is_a_message_or_refused(raw):
    try:
        message = arriving(raw)
    except ProtocolError:
        return
    assert message is None if raw == b"" else message == json.loads(raw[4:])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@FEW
@given(st.dictionaries(st.text(), JSON))
def test_every_message_arrives_as_it_was_sent(message):
    assert arriving(protocol.encode(message)) == message


def test_a_message_that_is_too_long_is_neither_sent_nor_taken(monkeypatch):
    raw = protocol.encode({"a": "x" * 13})
    monkeypatch.setattr(protocol, "MOST_BYTES", 20)
    assert arriving(protocol.encode({"a": "x" * 12}))
    with pytest.raises(ProtocolError, match="21 bytes"):
        protocol.encode({"a": "x" * 13})
    with pytest.raises(ProtocolError, match="21 bytes"):
        arriving(raw)


@pytest.mark.parametrize("sent", [b"", b"\0", b"\0\0\0\7{"], ids=["nothing", "some-of-its-length", "some-of-it"])
def test_what_does_not_come_in_time_is_a_timeout(ends, sent):
    ends[0].sendall(sent)
    with pytest.raises(TimeoutError):
        protocol.receive(ends[1], time.monotonic() + 0.05)


@pytest.mark.parametrize("ago", [0.0, 1.0])
def test_after_the_deadline_nothing_comes_in_time(ends, monkeypatch, ago):
    monkeypatch.setattr(protocol, "time", SimpleNamespace(monotonic=lambda: 10.0))
    protocol.send(ends[0], SOME)
    with pytest.raises(TimeoutError):
        protocol.receive(ends[1], 10.0 - ago)


def test_what_has_come_whole_is_taken_though_the_time_is_up_by_then(ends, monkeypatch):
    # Its length and its body are read once each.
    times = iter([1.0, 2.0])
    monkeypatch.setattr(protocol, "time", SimpleNamespace(monotonic=lambda: next(times, 9.0)))
    protocol.send(ends[0], SOME)
    assert protocol.receive(ends[1], 3.0) == SOME


def test_a_message_that_drips_is_a_timeout_too(ends):
    """Though something comes again and again."""
    stop = threading.Event()

    def drip():
        ends[0].sendall(b"\0\1\0\0")
        while not stop.wait(0.005):
            ends[0].sendall(b" ")

    thread = threading.Thread(target=drip)
    thread.start()
    with pytest.raises(TimeoutError):
        protocol.receive(ends[1], time.monotonic() + 0.2)
    stop.set()
    thread.join()


def test_an_end_before_all_was_read_is_told_from_one_after(ends):
    """The job of a worker that has not read it can be done by another."""
    protocol.send(ends[0], SOME)
    ends[1].recv(5)
    ends[1].close()
    with pytest.raises(ConnectionResetError):
        protocol.receive(ends[0])
