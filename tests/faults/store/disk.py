"""A model of what a disk holds after a loss of power, as little as POSIX promises.

The data of a file is on it once the file was synced, a name once its directory was. Of what was not, each name may be
there or not, whatever the order, and of the data any of its pages: others are zeros, or the file ends before them.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from faults.store.faulty import Call

PAGE = 4096


class Event(NamedTuple):
    """What a call did: ``what`` is write, sync, sync directory, or a change of names in ``directory``."""

    what: str
    directory: str = ""
    # For a change of names: those that are set to a file or a directory (its number), or removed (None).
    names: tuple[tuple[str, int | None], ...] = ()
    file: int = 0
    data: bytes = b""


class Recorder:
    """Makes events of the calls that it is told. Numbers of files and directories are its own."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._numbers = itertools.count(1)
        self._files: dict[int, int] = {}  # by descriptor
        self._directories: dict[int, str] = {}
        self._paths: dict[str, int] = {}

    def __call__(self, call: Call) -> None:
        note = getattr(self, f"_{call.name}", None)
        if note is not None:
            note(call)

    def _change(self, directory: str, *names: tuple[str, int | None]) -> None:
        self.events.append(Event("names", directory, names))
        for path, number in names:
            if number is None:
                self._paths.pop(path, None)
            else:
                self._paths[path] = number

    def _mkdir(self, call: Call) -> None:
        path = self._path(call, call.args[0], "dir_fd")
        self._change(os.path.dirname(path), (path, next(self._numbers)))

    def _descend(self, call: Call) -> None:
        self._directories[call.result] = os.path.join(self._directories[call.args[0]], call.args[1])

    def _open(self, call: Call) -> None:
        path, flags = self._path(call, call.args[0], "dir_fd"), call.args[1]
        if flags & os.O_DIRECTORY:
            self._directories[call.result] = path
        elif flags & os.O_CREAT:
            self._files[call.result] = next(self._numbers)
            self._change(os.path.dirname(path), (path, self._files[call.result]))

    def _dup(self, call: Call) -> None:
        if call.args[0] in self._files:
            self._files[call.result] = self._files[call.args[0]]

    def _close(self, call: Call) -> None:
        self._files.pop(call.args[0], None)
        self._directories.pop(call.args[0], None)

    def _write(self, call: Call) -> None:
        data = bytes(call.args[1][: call.result])
        self.events.append(Event("write", file=self._files[call.args[0]], data=data))

    def _fsync(self, call: Call) -> None:
        if call.args[0] in self._files:
            self.events.append(Event("sync", file=self._files[call.args[0]]))
        else:
            self.events.append(Event("sync directory", self._directories[call.args[0]]))

    def _rename(self, call: Call) -> None:
        old, new = self._path(call, call.args[0], "src_dir_fd"), self._path(call, call.args[1], "dst_dir_fd")
        assert os.path.dirname(old) == os.path.dirname(new)
        self._change(os.path.dirname(old), (new, self._paths[old]), (old, None))

    def _unlink(self, call: Call) -> None:
        path = self._path(call, call.args[0], "dir_fd")
        self._change(os.path.dirname(path), (path, None))

    def _path(self, call: Call, name: str, directory: str) -> str:
        """Of a name in an open directory, where that is."""
        above = self._directories[call.kwargs[directory]] if directory in call.kwargs else ""
        return os.path.normpath(os.path.join(above, name))


def after_loss(events: list[Event], path: str, root: str, old: bytes | None) -> set[bytes | None]:
    """All that can be found at ``path`` after these events and a loss of power; None: nothing.

    ``root`` and, if there is an ``old`` content, all on the way to it were on the disk before.
    """
    return {content for names in _names(events, path, root, old) for content in _contents(events, names, old)}


def _names(events: list[Event], path: str, root: str, old: bytes | None) -> Iterator[int | None]:
    """The numbers of the files that can be at ``path``; 0 for the one that was there before."""
    changes = [
        (event, any(later == Event("sync directory", event.directory) for later in events[at:]))
        for at, event in enumerate(events)
        if event.what == "names"
    ]
    steps = [path]
    while steps[-1] != root:
        steps.append(os.path.dirname(steps[-1]))
    for kept in itertools.product(*[(True,) if synced else (True, False) for _, synced in changes]):
        there: dict[str, int | None] = dict.fromkeys(steps if old is not None else [root], 0)
        for (event, _), is_kept in zip(changes, kept, strict=True):
            there.update(event.names if is_kept else ())
        yield there[path] if all(there.get(step) is not None for step in steps) else None


def _contents(events: list[Event], file: int | None, old: bytes | None) -> Iterable[bytes | None]:
    if file is None:
        return [None]
    if file == 0:
        return [old]
    synced, written = b"", b""
    for event in events:
        if event.file == file and event.what == "write":
            written += event.data
        elif event.file == file:
            synced = written
    return _torn(synced, written)


def _torn(synced: bytes, written: bytes) -> Iterator[bytes]:
    first = len(synced) // PAGE
    pages = [written[at : at + PAGE] for at in range(first * PAGE, len(written), PAGE)]
    for there in itertools.product((True, False), repeat=len(pages)):
        found = b"".join(page if is_there else bytes(len(page)) for page, is_there in zip(pages, there, strict=True))
        whole = synced + found[len(synced) - first * PAGE :]
        for end in {len(synced), len(whole), *range(len(synced) - len(synced) % PAGE + PAGE, len(whole), PAGE)}:
            yield whole[:end]
