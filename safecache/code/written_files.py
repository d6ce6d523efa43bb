"""What this thread has put into one directory of Triton's cache, until the kernel is made of it.

Triton reads by name what it has just written. A network file system can fail there, though the file is published, and
anybody may have cleared the cache: then the bytes are taken from memory.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Mapping
from typing import TypeVar

from safecache.code import gate
from safecache.files import filesystem
from safecache.reporting import events
from safecache.reporting.kinds import Kind
from safecache.reporting.reasons import Reason

__all__ = ["digest", "forget", "note", "read_by"]

_Result = TypeVar("_Result")


class _Written(threading.local):
    def __init__(self) -> None:
        self.directory = ""
        self.digests: dict[str, str | None] = {}
        self.contents: dict[str, bytes] = {}


_written = _Written()


def note(directory: str, name: str, content: bytes, readable: str, *, kept: bool) -> None:
    """Remember that ``content`` was written to ``name``, and can be read at ``readable``."""
    if directory != _written.directory:
        forget()
        _written.directory = directory
    _written.digests[name] = hashlib.sha256(content).hexdigest() if kept else None
    if not name.endswith(".so"):  # nothing is made of that here
        _written.contents[readable] = content


def digest(directory: str, name: str) -> tuple[bool, str | None]:
    """Whether this thread has written the file, and its SHA-256; None if it was not kept."""
    written = _written.digests if directory == _written.directory else {}
    return name in written, written.get(name)


def forget() -> None:
    """Let go of what was remembered."""
    _written.directory = ""
    _written.digests, _written.contents = {}, {}


def read_by(construct: Callable[[Mapping[str, str]], _Result], group: Mapping[str, str]) -> _Result:
    """``construct(group)``, which reads the files of the group; from copies if one cannot be read that we have written.

    Raises what ``construct`` does, for a file that somebody else has written.
    """
    contents = _written.contents
    forget()
    try:
        return filesystem.retried(lambda: construct(group), filesystem.GONE)
    except OSError as error:
        failed = None if error.filename is None else os.fspath(error.filename)
        if failed not in contents:
            raise
        text = f"kernel file {failed} could not be read again: {error.strerror}."
        remedy = "Its bytes are taken from memory."
        events.report(Reason.UNREADABLE, text, cause=f"{error.errno} read again", remedy=remedy, error=error)
    copies = {
        name: gate.private_copy(name, contents[path], Kind.KERNEL) if path in contents else path
        for name, path in group.items()
    }
    return construct(copies)
