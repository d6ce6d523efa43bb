"""Faults of a directory for files, and whether one caused an error.

Also reports its permissions if others can write to it, and replaces a TMPDIR without room for compilers.
"""

from __future__ import annotations

import errno
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

from safecache import load_errors
from safecache.fs import folders, mounts, ownership, private_directory
from safecache.reporting import events
from safecache.reporting.kinds import Reason
from safecache.reporting.report import Refusal
from safecache.session import Part, inherit
from safecache.settings import config

__all__ = [
    "Fault",
    "Immovable",
    "Unreadable",
    "Unsettled",
    "check",
    "find",
    "find_code_objection",
    "find_objection",
    "find_replacement",
    "is_of_file_system",
    "is_unwritable",
    "leave_to_parent",
    "note_private",
    "probe",
]

_USE = os.R_OK | os.W_OK | os.X_OK
_PROBE_SIZE = 1 << 16
# Errors of a file system, whichever the file: those of write(2) and close(2) name none.
_OF_FILE_SYSTEMS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE)
_OF_PATHS = (errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP)
# Errors that no other directory would prevent.
_OF_PROCESS = (errno.EMFILE, errno.ENFILE)
_LOADERS = ("cannot open shared object file", "failed to map segment from shared object")


class Fault(NamedTuple):
    """Fault of a directory. ``text``: a clause for messages."""

    reason: Reason
    text: str


class Unsettled(OSError):
    """Error: a file is not used, and stays where it is, since its directory cannot be used as it is."""

    @property
    def evidence(self) -> str:
        """Clause about that file, for messages."""
        return f"{self.strerror}"


class Unreadable(Unsettled):
    """Error: the record that attests a file exists and cannot be read."""

    @property
    def evidence(self) -> str:
        """Clause about that file, for messages."""
        return f"its record cannot be read: {self.strerror}"


class Immovable(Unsettled):
    """Error: a refused file cannot be quarantined. ``strerror`` says why it is refused, and what prevents that."""

    def __init__(self, number: int, text: str, path: str | None, refusal: Refusal | None = None) -> None:
        super().__init__(number, text, path)
        self.refusal = refusal


def _make_directory(directory: str) -> None:
    os.makedirs(directory, exist_ok=True)


def find_objection(directory: str, make: Callable[[str], None] = _make_directory) -> str | None:
    """Return why this process cannot keep files in ``directory``, by its permissions; None if it seems to be able to.

    ``make`` creates a missing directory. Takes one system call if there is no objection.
    """
    # With a separator, since a file may be readable, writable and executable too.
    if not os.access(os.path.join(directory, ""), _USE, effective_ids=True):
        try:
            make(directory)
        except OSError as error:
            return f"{error.filename or directory}: {error.strerror}"
        if os.path.isdir(directory) and not os.access(directory, _USE, effective_ids=True):
            return f"{directory}: {os.strerror(errno.EROFS if _is_read_only(directory) else errno.EACCES)}"
    return None


def is_unwritable(directory: str) -> bool:
    """Tell whether ``directory`` exists and this process may make nothing in it."""
    return os.path.isdir(directory) and not os.access(directory, os.W_OK | os.X_OK, effective_ids=True)


def find_code_objection(directory: str, variable: str) -> str | None:
    """Return why no code can be loaded from ``directory``, in a clause that says which ``variable`` moves it.

    None if code can be, or if ``SAFECACHE_EXEC_DIR`` makes that irrelevant.
    """
    if config.current().exec_dir is not None or not mounts.is_noexec(directory):
        return None
    return f"it is{load_errors.write_advice(directory, variable)}"


def _is_read_only(directory: str) -> bool:
    with suppress(OSError):
        return bool(os.statvfs(directory).f_flag & os.ST_RDONLY)
    return False


def probe(directory: str) -> str | None:
    """Return why ``directory`` cannot be used, after making a directory and a 64 KiB file there; None if it can.

    Also None if this process has too many open files to tell. All that is made there is removed.
    """
    against = find_objection(directory)
    if against is not None:
        return against
    try:
        with folders.create_scratch(directory, ".safecache-probe-") as place:
            place.write("file", bytes(_PROBE_SIZE))
    except OSError as error:
        return None if error.errno in _OF_PROCESS else f"{directory}: {error.strerror}"
    return None


def find(error: BaseException, *directories: str) -> Fault | None:
    """Return what ``error`` or its cause says is wrong with ``directories`` or files there; None if it is about others.

    A compiler's or a loader's message counts as well as an OSError. A lock that was not granted in time counts
    anywhere.
    """
    for link in _iter_causes(error):
        lock = getattr(link, "lock_file", None)
        if isinstance(link, TimeoutError) and lock is not None:
            return Fault(Reason.LOCK_HELD, f"the lock {lock} was not granted in time")
        if isinstance(link, OSError) and link.errno is not None:  # the loader's has none
            said = _parse_system_error(link, directories)
        else:
            said = _parse_message(str(link), directories)
        if said is not None:
            return Fault(Reason.UNREADABLE if isinstance(link, Unreadable) else Reason.UNUSABLE_DIRECTORY, said)
    return None


def is_of_file_system(error: OSError) -> bool:
    """Tell whether ``error`` is one of the file system, such as ENOSPC: any other write there will fail too."""
    return error.errno in _OF_FILE_SYSTEMS


def _iter_causes(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__


def _parse_system_error(error: OSError, directories: tuple[str, ...]) -> str | None:
    names = [os.fspath(name) for name in (error.filename, error.filename2) if isinstance(name, (str, os.PathLike))]
    above = tuple(os.path.join(directory, "") for directory in directories)
    within = next((name for name in names if f"{name}/".startswith(above)), None)
    if error.errno in _OF_PROCESS or (within is None and (names or error.errno not in _OF_FILE_SYSTEMS)):
        return None
    return f"{within or directories[0]}: {error.strerror or error}"


def _parse_message(text: str, directories: tuple[str, ...]) -> str | None:
    """Return the message of a compiler that could not write or read there; None for a header it does not find."""
    for number in _OF_FILE_SYSTEMS:
        if os.strerror(number) in text:
            return f"{directories[0]}: {os.strerror(number)}"
    words = "|".join(re.escape(word) for word in (*map(os.strerror, _OF_PATHS), *_LOADERS))
    for directory in directories:
        found = re.search(rf"({re.escape(directory)}(?:/[^\s:'\"]*)?)['\"]?: ['\"]?({words})", text)
        if found is not None:
            return f"{found[1]}: {found[2]}"
    return None


# In place of the temporary directory.
_place: Part[str | None] = Part(lambda: None)


def find_replacement() -> str | None:
    """Return a private directory to replace the temporary one if that is unusable, which is reported; else None.

    Also None if there is no usable private one. Raises CacheWriteError in strict mode.
    """
    # Unlike Python, a compiler does not check for room.
    named = config.copy_environment().get("TMPDIR", "")
    directory = named if os.path.isdir(named) else tempfile.gettempdir()
    against = probe(directory)
    if against is None:
        return None
    message = "cannot use the temporary directory"
    remedy = (
        "Compilers use another one for now. Help: free space there, or set TMPDIR to a directory that can be written"
    )
    events.report(Reason.UNUSABLE_DIRECTORY, message, why=against, cause=directory, remedy=remedy)
    with suppress(OSError):  # the compiler's own error is raised then
        if _place.now is None:
            _place.now = private_directory.create_lasting(lambda path: probe(path) is None)
    return _place.now


_REMEDY = (
    "Only sealed files are used; others can still delete files, or read what you compile. Help: chmod -R go-w {0}, or "
    "SAFECACHE_TRUST=shared if it is shared on purpose"
)

# The directories that this process need not check again.
_settled: Part[set[str]] = Part(set, inherit)
_parent_tells = False


def check(root: str) -> None:
    """Report once if anyone but this user and root can write to the cache directory ``root``, or replace it.

    Strict mode raises EntryRefusedError for that, each time. A directory that does not exist yet is checked later.
    """
    if root in _settled.now or config.current().shared or not os.path.lexists(root):
        return
    objection = ownership.find_outside_exposure(root)
    if objection is not None and not (_parent_tells and not config.current().strict):
        message = f"cache directory {root} is writable by other users"
        remedy = _REMEDY.format(root)
        events.report(Reason.EXPOSED_DIRECTORY, message, why=objection, cause=objection, remedy=remedy)
    _settled.now.add(root)


def note_private(root: str) -> None:
    """Note that nobody else can write to ``root``, as was just found, so that it is not checked again."""
    _settled.now.add(root)


def leave_to_parent() -> None:
    """Suppress this module's warnings in this process, one of many workers, whose results its parent reads."""
    global _parent_tells
    _parent_tells = True
