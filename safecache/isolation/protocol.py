"""Messages between a process, its compile server and the workers; and the output and warnings of a compile."""

from __future__ import annotations

import builtins
import contextlib
import io
import json
import os
import socket
import struct
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

from safecache.session import Part, inherit

__all__ = [
    "MOST_BYTES",
    "STAGES",
    "STAGE_FILE",
    "TEMPORARY",
    "ProtocolError",
    "catch_remarks",
    "encode",
    "receive",
    "receive_with_descriptors",
    "repeat_remarks",
    "send",
]

# The IR of the largest kernels has some MB.
MOST_BYTES = 64 << 20
# Where compilers put temporary files, below the job's directory: they are removed with that, even if they are killed.
TEMPORARY = ".tmp"
# The file in the job's directory that names the current stage, and the stages in order, by the suffix of the file that
# Triton stores when each is done.
STAGE_FILE = "stage"
STAGES = ("source", "glir", "ttir", "ttgir", "llir", "ptx", "amdgcn", "cubin", "hsaco")

_MOST_DESCRIPTORS = 4
_CHUNK = 1 << 20
_LENGTH = struct.Struct("!I")


class ProtocolError(Exception):
    """Data sent, or to be sent, is not a message: it is too long, cut off, or not a JSON object."""


def encode(message: dict[str, Any]) -> bytes:
    """The bytes of a message. Raises ProtocolError if it is too long, TypeError or ValueError if not JSON-able."""
    body = json.dumps(message, separators=(",", ":")).encode("ascii")
    if len(body) > MOST_BYTES:
        raise ProtocolError(f"a message of {len(body)} bytes is longer than {MOST_BYTES}")
    return _LENGTH.pack(len(body)) + body


def send(channel: socket.socket, message: dict[str, Any], descriptors: Iterable[int] = ()) -> None:
    """Send a message, and copies of ``descriptors`` with it. Raises as encode() does, and OSError."""
    data = encode(message)
    sent = socket.send_fds(channel, [data], list(descriptors))
    channel.sendall(memoryview(data)[sent:])


def receive(channel: socket.socket, deadline: float | None = None) -> dict[str, Any] | None:
    """The next message, or None if the other side has closed. Descriptors that came with it are not taken.

    ``deadline``: by time.monotonic(), None for none. Raises ProtocolError; TimeoutError; ConnectionResetError if
    the other side closed without reading all that was sent to it; OSError.
    """
    return _read_message(channel, _read_bytes(channel, _LENGTH.size, deadline), deadline)


def receive_with_descriptors(channel: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """Return the next message, as receive() does, and its descriptors, which the caller must close."""
    start, descriptors, _, _ = socket.recv_fds(channel, _LENGTH.size, _MOST_DESCRIPTORS)
    try:
        for descriptor in descriptors:
            # Not by a flag, which recv_fds() drops. Programs started later, such as ptxas, would hold it open.
            os.set_inheritable(descriptor, False)
        rest = _read_bytes(channel, _LENGTH.size - len(start), None)
        return _read_message(channel, start + rest, None), descriptors
    except BaseException:
        for descriptor in descriptors:
            os.close(descriptor)
        raise


def _read_message(channel: socket.socket, header: bytes, deadline: float | None) -> dict[str, Any] | None:
    if not header:
        return None
    if len(header) < _LENGTH.size:
        raise ProtocolError("a message was cut off")
    (size,) = _LENGTH.unpack(header)
    if size > MOST_BYTES:
        raise ProtocolError(f"a message claims to have {size} bytes")
    body = _read_bytes(channel, size, deadline)
    if len(body) < size:
        raise ProtocolError("a message was cut off")
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"a message is no JSON: {type(error).__name__}") from error
    if not isinstance(message, dict):
        raise ProtocolError(f"a message is a {type(message).__name__}, not an object")
    return message


def _read_bytes(channel: socket.socket, size: int, deadline: float | None) -> bytes:
    """``size`` bytes; fewer if the other side has closed."""
    content = bytearray()
    while len(content) < size:
        if deadline is not None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("no message in time")
            channel.settimeout(left)
        # In pieces: a false length costs no memory.
        piece = channel.recv(min(size - len(content), _CHUNK))
        if not piece:
            break
        content += piece
    return bytes(content)


# In characters: more than the PTX that Triton prints where ptxas fails.
_MOST = 1 << 20
# A registry as of one module with all kernels, so that a filter that shows a warning once does so here, too.
_shown: Part[dict[Any, Any]] = Part(dict, inherit)


@contextlib.contextmanager
def catch_remarks() -> Iterator[dict[str, Any]]:
    """Collect output and warnings instead of showing them: JSON-able, complete after the block, empty if none."""
    remarks: dict[str, Any] = {}
    output = io.StringIO()
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(output):
        warnings.simplefilter("always")
        yield remarks
    if output.getvalue():
        remarks["output"] = output.getvalue()[:_MOST]
    if caught:
        remarks["warnings"] = [[w.category.__name__, str(w.message), w.filename, w.lineno] for w in caught]


def repeat_remarks(remarks: dict[str, Any]) -> None:
    """Show what heard() has collected. Raises warnings that a filter turns into errors, as without a worker."""
    sys.stdout.write(remarks.get("output", ""))
    for category, message, file, line in remarks.get("warnings", ()):
        found = getattr(builtins, category, None)
        kind = found if isinstance(found, type) and issubclass(found, Warning) else UserWarning
        warnings.warn_explicit(message, kind, file, line, registry=_shown.now)
