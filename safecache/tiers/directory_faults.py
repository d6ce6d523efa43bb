"""What is wrong with a directory that files are to be kept in, and whether it was that which an error came of.

Others may be able to write to it; compilers need another one where TMPDIR has no room.
"""

from __future__ import annotations

import errno
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

from safecache import loads
from safecache.files import folders, mounts, ownership, private_directory
from safecache.reporting import events
from safecache.reporting.kinds import Reason
from safecache.settings import config

__all__ = [
    "Fault",
    "Immovable",
    "Unreadable",
    "Unsettled",
    "check",
    "find",
    "instead",
    "is_of_file_system",
    "leave_to_parent",
    "note_private",
    "objection",
    "objection_to_code",
    "probe",
    "reset",
]

_USE = os.R_OK | os.W_OK | os.X_OK
_PROBE_SIZE = 1 << 16
# Of a file system, whatever file it was: an error of a write(2) or close(2) names none.
_OF_FILE_SYSTEMS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE)
_OF_PATHS = (errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP)
# No other directory would do.
_OF_PROCESS = (errno.EMFILE, errno.ENFILE)
_LOADERS = ("cannot open shared object file", "failed to map segment from shared object")


class Fault(NamedTuple):
    """What is wrong, as a clause for a person."""

    reason: Reason
    text: str


class Unsettled(OSError):
    """A file is not used, and stays where it is: the directory that it lies in cannot be used as it is."""

    @property
    def evidence(self) -> str:
        """A clause about that file, for a person."""
        return f"{self.strerror}"


class Unreadable(Unsettled):
    """What attests a file is there and cannot be read."""

    @property
    def evidence(self) -> str:
        """A clause about that file, for a person."""
        return f"its record cannot be read: {self.strerror}"


class Immovable(Unsettled):
    """A file is refused and cannot be moved away; ``strerror`` says why it is refused, and what is in the way."""


def _make(directory: str) -> None:
    os.makedirs(directory, exist_ok=True)


def objection(directory: str, make: Callable[[str], None] = _make) -> str | None:
    """Why this process cannot keep files in ``directory``, as far as can be told by looking.

    It is made, by ``make``, if it is not there. One system call if there is no objection.
    """
    # The separator: a file that may be read, written and executed is no directory.
    if not os.access(os.path.join(directory, ""), _USE, effective_ids=True):
        try:
            make(directory)
        except OSError as error:
            return f"{error.filename or directory}: {error.strerror}"
        if os.path.isdir(directory) and not os.access(directory, _USE, effective_ids=True):
            return f"{directory}: {os.strerror(errno.EROFS if _is_read_only(directory) else errno.EACCES)}"
    return None


def objection_to_code(directory: str, variable: str) -> str | None:
    """Why no code can be loaded from ``directory``, in a clause that says which ``variable`` moves it; None if it can.

    Or if that does not matter here.
    """
    if config.current().exec_dir is not None or not mounts.forbids_execution(directory):
        return None
    return f"it lies{loads.advice(directory, variable)}"


def _is_read_only(directory: str) -> bool:
    with suppress(OSError):
        return bool(os.statvfs(directory).f_flag & os.ST_RDONLY)
    return False


def probe(directory: str) -> str | None:
    """As objection(), but tried: a directory and a file are made in there, and removed."""
    against = objection(directory)
    if against is not None:
        return against
    try:
        with folders.scratch(directory, ".safecache-probe-") as place:
            place.write("file", bytes(_PROBE_SIZE))
    except OSError as error:
        return None if error.errno in _OF_PROCESS else f"{directory}: {error.strerror}"
    return None


def find(error: BaseException, *directories: str) -> Fault | None:
    """What ``error`` says is wrong with one of these directories or with what lies there; None if it is about others.

    A compiler's or a loader's words count as well as an OSError.
    """
    for link in _chain(error):
        lock = getattr(link, "lock_file", None)
        if isinstance(link, TimeoutError) and lock is not None:
            return Fault(
                Reason.LOCK_HELD, f"the lock {lock} was not granted within {config.current().lock_timeout:g} s"
            )
        if isinstance(link, OSError) and link.errno is not None:  # that of the loader has none
            said = _said_by_system(link, directories)
        else:
            said = _said_in_words(str(link), directories)
        if said is not None:
            return Fault(Reason.UNREADABLE if isinstance(link, Unreadable) else Reason.UNUSABLE_DIRECTORY, said)
    return None


def is_of_file_system(error: OSError) -> bool:
    """Whether whatever else is written there will fail too."""
    return error.errno in _OF_FILE_SYSTEMS


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__


def _said_by_system(error: OSError, directories: tuple[str, ...]) -> str | None:
    names = [os.fspath(name) for name in (error.filename, error.filename2) if isinstance(name, (str, os.PathLike))]
    within = next((name for name in names for directory in directories if _is_within(name, directory)), None)
    if error.errno in _OF_PROCESS or (within is None and (names or error.errno not in _OF_FILE_SYSTEMS)):
        return None
    return f"{within or directories[0]}: {error.strerror or error}"


def _is_within(name: str, directory: str) -> bool:
    return name == directory or name.startswith(os.path.join(directory, ""))


def _said_in_words(text: str, directories: tuple[str, ...]) -> str | None:
    """The words of a compiler that could not write or read there. A header that it does not find is none of ours."""
    for number in _OF_FILE_SYSTEMS:
        if os.strerror(number) in text:
            return f"{directories[0]}: {os.strerror(number)}"
    words = "|".join(re.escape(word) for word in (*map(os.strerror, _OF_PATHS), *_LOADERS))
    for directory in directories:
        found = re.search(rf"({re.escape(directory)}(?:/[^\s:'\"]*)?)['\"]?: ['\"]?({words})", text)
        if found is not None:
            return f"{found[1]}: {found[2]}"
    return None


_places: dict[int, str] = {}


def instead() -> str | None:
    """A private directory in place of the temporary one, if that cannot be used, which is reported; else None.

    Raises CacheWriteError in strict mode.
    """
    # Unlike Python, a compiler does not try whether there is room.
    named = config.child_environment().get("TMPDIR", "")
    directory = named if os.path.isdir(named) else tempfile.gettempdir()
    against = probe(directory)
    if against is None:
        return None
    message = f"the temporary directory cannot be used: {against}."
    remedy = "Compilers use another one for now; make room there, or let TMPDIR name one that has it."
    events.report(Reason.UNUSABLE_DIRECTORY, message, cause=directory, remedy=remedy)
    with suppress(OSError):  # what the compiler said is raised then
        if os.getpid() not in _places:
            _places[os.getpid()] = private_directory.lasting(lambda path: probe(path) is None)
    return _places.get(os.getpid())


_REMEDY = (
    "What is sealed is used, and what is not is never; but others can remove it, and see what you compile. Take their "
    "right to write (chmod go-w), name another directory, or set SAFECACHE_SHARED=1 if it is shared on purpose."
)

# The directories that need no further look in this process.
_settled: set[str] = set()
_parent_tells = False


def check(root: str) -> None:
    """Say once if others than this user and root can write to the cache directory ``root``, or replace it.

    Raises EntryRefusedError for it in strict mode, each time. A directory that is not there yet is looked at later.
    """
    if root in _settled or config.current().shared or not os.path.lexists(root):
        return
    objection = ownership.why_not_private(root)
    if objection is not None:
        # Only now: it may have to be asked of a server.
        objection = ownership.why_not_private(root, group=ownership.own_group())
    if objection is not None and not (_parent_tells and not config.current().strict):
        message = f"others can write to the cache directory {root}, or replace it: {objection}."
        events.report(Reason.EXPOSED_DIRECTORY, message, cause=objection, remedy=_REMEDY)
    _settled.add(root)


def note_private(root: str) -> None:
    """Nobody else can write to ``root``: that was found just now, and need not be looked at again."""
    _settled.add(root)


def leave_to_parent() -> None:
    """Warn of nothing in this process: it is a worker, one of many, and what it makes its parent reads."""
    global _parent_tells
    _parent_tells = True


def reset() -> None:
    """Look at each directory anew."""
    _settled.clear()
