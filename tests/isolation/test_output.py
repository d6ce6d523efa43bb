"""What is kept of what a worker writes."""

from __future__ import annotations

import os

import pytest

from safecache.isolation import connection
from safecache.isolation.connection import MOST_BYTES, Output


@pytest.fixture
def pipe():
    read_end, write_end = connection.open_pipe()
    yield read_end, write_end
    connection.close(read_end, write_end)


def fill(output, write_end, content):
    for start in range(0, len(content), 32768):
        os.write(write_end.fileno(), content[start : start + 32768])
        output.drain()


def test_output_is_taken_once(pipe):
    output = Output(pipe[0].fileno())
    assert output.take() == ""
    fill(output, pipe[1], b"one")
    fill(output, pipe[1], "zwölf\n".encode())
    assert (output.take(), output.take()) == ("onezwölf\n", "")


@pytest.mark.parametrize("size", [MOST_BYTES, MOST_BYTES + 1, 2 * MOST_BYTES - 1, 2 * MOST_BYTES])
def test_so_much_is_kept_whole(pipe, size):
    output = Output(pipe[0].fileno())
    content = bytes(97 + number % 26 for number in range(size))
    fill(output, pipe[1], content)
    assert output.take().encode() == content


@pytest.mark.parametrize("more", [1, 100, 5 * MOST_BYTES])
def test_of_more_the_beginning_and_the_end_are_kept(pipe, more):
    output = Output(pipe[0].fileno())
    content = bytes(97 + number % 26 for number in range(2 * MOST_BYTES + more))
    fill(output, pipe[1], content)
    head, between, tail = output.take().partition(f"\n... {more} bytes left out ...\n")
    assert between and (head.encode(), tail.encode()) == (content[:MOST_BYTES], content[-MOST_BYTES:])


def test_what_is_no_text_is_shown_as_far_as_it_is(pipe):
    output = Output(pipe[0].fileno())
    fill(output, pipe[1], b"\xff\0ok")
    assert output.take() == "�\0ok"


def test_reading_says_when_nothing_will_come_any_more(pipe):
    output = Output(pipe[0].fileno())
    assert output.read()
    connection.close(pipe[1])
    assert not output.read()
    output.drain()
