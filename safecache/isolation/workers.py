"""A worker as the process has it that sends it jobs: its channel, what it writes, and its end."""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import ExitStack, suppress
from typing import Any

from safecache.isolation import descriptors, protocol
from safecache.isolation.connection import Connection, Ended, ServerGoneError, ServiceUnavailable
from safecache.isolation.output import Output

__all__ = ["UnreadError", "Worker"]


class UnreadError(Exception):
    """The worker was gone before it had read the job, or cannot be reached."""


class Worker:
    """Forked by the constructor, which raises ServiceUnavailable or ServerGoneError. One thread at a time uses it."""

    def __init__(self, connection: Connection, number: int) -> None:
        self.connection = connection
        self.jobs = 0
        self.used = time.monotonic()
        self._number = number
        try:
            with ExitStack() as undone:
                self._channel, channel = descriptors.socketpair()
                undone.callback(descriptors.close, self._channel, channel)
                self._pipe, written = descriptors.pipe()
                undone.callback(descriptors.close, self._pipe, written)
                self._pid = connection.fork(number, channel.fileno(), written.fileno())
                undone.pop_all()
        except OSError as error:
            raise ServiceUnavailable(f"no worker can be started: {error}") from error
        descriptors.close(channel, written)
        self._since = _start_time(self._pid)
        self.output = Output(self._pipe.fileno())

    def ask(self, request: bytes, deadline: float) -> dict[str, Any] | None:
        """What it replies; None if it has ended instead.

        Raises TimeoutError, UnreadError, and ProtocolError for what is no reply.
        """
        self.jobs += 1
        self.output.drain()
        self.output.take()
        try:
            self._channel.settimeout(max(0.001, deadline - time.monotonic()))
            self._channel.sendall(request)
            reply = self._receive(deadline)
        except TimeoutError:
            raise
        except OSError as error:
            raise UnreadError from error
        self.output.drain()
        self.used = time.monotonic()
        return reply

    def _receive(self, deadline: float) -> dict[str, Any] | None:
        waiting = select.poll()
        waiting.register(self._channel, select.POLLIN)
        waiting.register(self._pipe, select.POLLIN)
        while True:
            left = deadline - time.monotonic()
            ready = [descriptor for descriptor, _ in waiting.poll(max(0.0, left * 1000))]
            if self._channel.fileno() in ready:
                # With the time of one more look: this process may itself have been stopped for that long.
                return protocol.receive(self._channel, max(deadline, time.monotonic() + 1))
            if left <= 0:
                raise TimeoutError
            if ready and not self.output.read():
                waiting.unregister(self._pipe)

    def end(self, grace: float) -> Ended:
        """How it has ended, killed with all that it has started if it lives on after ``grace`` seconds.

        Raises ServerGoneError, and has it killed all the same.
        """
        try:
            ended = self.connection.end(self._number, grace)
            self.output.drain()
            return ended
        except ServerGoneError:
            self._kill_group()
            raise
        finally:
            self.let_go()

    def _kill_group(self) -> None:
        """Kill what it has started and leaves behind, when it ends because its server has."""
        # As long as one of the group lives, no other process gets its number.
        if _start_time(self._pid) in (None, self._since):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, signal.SIGKILL)

    def let_go(self) -> None:
        """Close what this process has of it; an idle one ends then."""
        descriptors.close(self._channel, self._pipe)


def _start_time(pid: int) -> str | None:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[19]
    except OSError:
        return None
