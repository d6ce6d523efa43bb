"""Extensions that are built when they are used: by ninja, in their directory or, if need be, in a private one."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from safecache import compiles
from safecache.code import exec_directory, kept_code, ninja_builds
from safecache.code.lock_guards import Lock
from safecache.code.ninja_builds import Build
from safecache.errors import EntryRefusedError
from safecache.files import ownership, private_directory
from safecache.places.layout import CodeFile
from safecache.reporting import events
from safecache.reporting.kinds import Reason
from safecache.session import Part, inherit
from safecache.settings import config
from safecache.tiers import directory_faults
from safecache.tiers.directory_faults import Immovable, Unsettled

__all__ = ["admit", "build", "locked_late", "make_private_directory", "report_private_build", "run_ninja", "take_lock"]

# Where this process has built, or found out that nothing was to be built; and in which directory instead.
_verified: Part[dict[str, str]] = Part(dict, inherit)


@contextmanager
def locked_late(*, translates: bool) -> Iterator[None]:
    """In this block the lock of a build directory is taken by take_lock(), and only if something is to be built.

    Anyone who can write there could hold it. Not if torch ``translates`` sources there first, as it does on ROCm.
    """

    def guard(lock: Lock) -> None:
        if compiles.current.extension_lock is None and os.path.basename(lock.path) == "lock":
            compiles.current.extension_lock = lock
            if not translates:
                return
        lock.take()

    with compiles.scope(lock_guard=guard, extension_lock=None):
        yield


def take_lock() -> None:
    """Take the lock that locked_late() has put off, if there is one. Raises what taking it does."""
    if compiles.current.extension_lock is not None:
        compiles.current.extension_lock.take()


def run_ninja(
    builds: Iterable[Build], directory: str, ninja: Callable[[], None], *, is_exclusive: bool = False
) -> None:
    """Have ``ninja``, which runs in ``directory``, build what is not attested; it does not run if all is.

    ``is_exclusive``: not where others could replace a file while ninja runs. Raises what ``ninja`` and the lock do,
    Unsettled if that is so or a refused file cannot be quarantined, EntryRefusedError for one in strict mode.
    """
    planned = [build for build in builds if not build.is_attested()]
    if planned:
        if is_exclusive and not config.current().shared:
            exposed = ownership.why_not_private(directory)
            if exposed is not None:
                raise Unsettled(errno.EPERM, f"others can write there: {exposed}", directory)
        take_lock()
        # Another process may have built it meanwhile.
        planned = [build for build in planned if not build.is_attested()]
        for build in planned:
            build.settle()
        planned = [build for build in planned if not build.fetch()]
    if planned:
        if any(build.is_missing() for build in planned):
            kept_code.forbid_miss(f"the library of {directory}")
        with ninja_builds.attest_while(planned, directory):
            ninja()
        for build in planned:
            build.keep()


def build(name: str, directory: str, run: Callable[..., None], flags: Iterable[str], *, standalone: bool) -> None:
    """Have ``run`` build the extension, unless all of it is attested: in that directory, or in a private one.

    ``run`` is torch's build with the directory, and ``extra_ldflags``, of which ``flags`` are the caller's, and
    ``verbose`` as it wants them. Raises what that raises; EntryRefusedError for a refused file in strict mode, and for
    a ``standalone`` program, whose path torch reports, if something that cannot be quarantined is in the way.
    """
    text = _plan(run, flags)
    directory_faults.check(directory)
    _verified.now[directory] = directory
    try:
        run_ninja([_planned(directory, text)], directory, lambda: run(directory))
    except Immovable as error:
        why = f"{error.filename}: {error.evidence}"
        if standalone:
            raise EntryRefusedError(f"safecache: {why}.") from error
        private = make_private_directory(name)
        run_ninja([_planned(private, text)], private, lambda: run(private))
        report_private_build(name, directory, private, why, "TORCH_EXTENSIONS_DIR", error)
        _verified.now[directory] = private


def _planned(directory: str, text: str) -> Build:
    return ninja_builds.plan(os.path.join(directory, "build.ninja"), text)


def _plan(run: Callable[..., None], flags: Iterable[str]) -> str:
    """The build.ninja that torch would write now; it does not depend on the directory."""
    directory = tempfile.mkdtemp(dir=private_directory.process_directory())
    try:
        with compiles.scope(is_planning=True):
            # A copy, since torch appends to it.
            run(directory, extra_ldflags=list(flags), verbose=False)
        with open(os.path.join(directory, "build.ninja"), errors="surrogateescape") as file:
            return file.read()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def make_private_directory(name: str) -> str:
    """The path, ending in ``name``, of a private directory that lasts as long as this process. Raises OSError."""
    return os.path.join(tempfile.mkdtemp(dir=private_directory.process_directory()), name)


def report_private_build(name: str, directory: str, private: str, why: str, variable: str, error: Exception) -> None:
    """Report that an extension was built in a private directory, and that the ``variable`` moves the unusable one.

    Raises the reason's error in strict mode.
    """
    message = f"the build directory {directory} cannot be used: {why}. {name} was built in {private}."
    remedy = f"Remove what is in the way, or let {variable} name another directory."
    events.report(Reason.UNUSABLE_DIRECTORY, message, cause=directory, remedy=remedy, error=error)


def admit(directory: str, name: str) -> str:
    """Where to load the library ``name`` from. Raises EntryRefusedError in default mode too, and OSError."""
    place = _verified.now.get(directory)
    path = os.path.join(place or directory, name)
    return exec_directory.executable_path(path) if place is None else exec_directory.load_path(CodeFile(path, place))
