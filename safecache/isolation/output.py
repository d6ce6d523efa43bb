"""What a worker writes to its stdout and stderr: the beginning and the end are kept, and nothing is handed through."""

from __future__ import annotations

import os
import time

__all__ = ["MOST_BYTES", "Output"]

# Kept of the beginning, and as much of the end.
MOST_BYTES = 64 << 10

_PIPE = 64 << 10
# Once a job has written this much, it is read at most as fast as _PIPE in each _PAUSE: a flood is its writer's problem.
_FLOOD = 1 << 20
_PAUSE = 0.01


class Output:
    """Of one worker at a time, from the pipe ``descriptor``, which does not block."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._head = bytearray()
        self._tail = bytearray()
        self._size = 0

    def read(self) -> bool:
        """Take what is there, at most a pipe full; False if there is nothing and never will be."""
        if self._size > _FLOOD:
            time.sleep(_PAUSE)
        try:
            piece = os.read(self._descriptor, _PIPE)
        except BlockingIOError:
            return True
        except OSError:  # somebody has closed it, along with all that he does not know
            return False
        self._keep(piece)
        return bool(piece)

    def drain(self) -> None:
        """Take all that is there, with no more patience than for a flood."""
        before = -1
        while before < self._size <= _FLOOD:
            before = self._size
            self.read()

    def take(self) -> str:
        """What was written since the last call, and forget it."""
        left_out = self._size - len(self._head) - len(self._tail)
        between = f"\n... {left_out} bytes left out ...\n".encode() if left_out else b""
        text = bytes(self._head + between + self._tail).decode("utf-8", "replace")
        self._head, self._tail, self._size = bytearray(), bytearray(), 0
        return text

    def _keep(self, piece: bytes) -> None:
        self._size += len(piece)
        room = MOST_BYTES - len(self._head)
        self._head += piece[:room]
        self._tail = (self._tail + piece[room:])[-MOST_BYTES:] if len(piece) > room else self._tail
