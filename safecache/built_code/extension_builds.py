"""Extensions that are built when they are used: by ninja, in their directory or, if need be, in a private one."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from safecache import compiles
from safecache.built_code import exec_directory, kept_code, ninja_builds
from safecache.built_code.lock_guards import Lock
from safecache.built_code.ninja_builds import Build
from safecache.errors import EntryRefusedError
from safecache.fs import ownership, private_directory
from safecache.places.layout import CodeFile
from safecache.reporting import events
from safecache.reporting.kinds import Reason
from safecache.session import Part, inherit
from safecache.settings import config
from safecache.tiers import directory_faults
from safecache.tiers.directory_faults import Immovable, Unsettled

__all__ = [
    "admit",
    "build",
    "check_file",
    "has_built",
    "make_private_directory",
    "postpone_lock",
    "report_private_build",
    "run_ninja",
    "take_lock",
]

# Where this process has built, or found out that nothing was to be built; and in which directory instead.
_verified: Part[dict[str, str]] = Part(dict, inherit)


@contextmanager
def postpone_lock(*, translates: bool) -> Iterator[None]:
    """Postpone the lock of a build directory in this block: take_lock() takes it, only if something is to be built.

    Anyone who can write there could hold the lock. ``translates``: torch translates sources there first, as on ROCm:
    the lock is taken at once.
    """

    def guard(lock: Lock) -> None:
        if compiles.current.extension_lock is None and os.path.basename(lock.path) == "lock":
            compiles.current.extension_lock = lock
            if not translates:
                return
        lock.take()

    with compiles.override_scope(lock_guard=guard, extension_lock=None):
        yield


def take_lock() -> None:
    """Take the lock that locked_late() has postponed, if there is one. Raises what taking it raises."""
    if compiles.current.extension_lock is not None:
        compiles.current.extension_lock.take()


def check_file(path: str) -> None:
    """Raise FileExistsError if something else than a file is there, such as a FIFO, whose other end may never come."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise FileExistsError(errno.EEXIST, "it is no file", path)


def run_ninja(
    builds: Iterable[Build], directory: str, ninja: Callable[[], None], *, is_exclusive: bool = False
) -> None:
    """Call ``ninja``, which builds in ``directory``, unless all ``builds`` are attested or found in a cache.

    ``is_exclusive``: refuse a directory in which others could replace a file meanwhile. Raises what ``ninja`` and the
    lock raise. Raises Unsettled for such a directory, and for a refused file that cannot be quarantined. Raises
    EntryRefusedError for a refused file in strict mode, and MissError if SAFECACHE_STRICT=misses=1 forbids the build.
    """
    planned = [build for build in builds if not build.is_attested()]
    if planned:
        if is_exclusive and not config.current().shared:
            exposed = ownership.find_exposure(directory)
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
    """Call ``run`` to build the extension ``name``, unless all of it is attested, in ``directory`` or a private one.

    ``run``: torch's build; takes the directory, ``extra_ldflags`` and ``verbose``. ``flags``: the caller's linker
    flags. If a refused file cannot be quarantined, the build is private, and reported; for a ``standalone`` program,
    whose path torch reports, that raises EntryRefusedError. Raises what ``run`` raises, and EntryRefusedError in strict
    mode.
    """
    text = _write_plan(run, flags)
    directory_faults.check(directory)
    _verified.now[directory] = directory
    try:
        run_ninja([_make_build(directory, text)], directory, lambda: run(directory))
    except Immovable as error:
        why = f"{error.filename}: {error.evidence}"
        if standalone:
            raise EntryRefusedError(f"safecache: {why}.") from error
        private = make_private_directory(name)
        run_ninja([_make_build(private, text)], private, lambda: run(private))
        report_private_build(name, directory, private, why, "TORCH_EXTENSIONS_DIR", error)
        _verified.now[directory] = private


def _make_build(directory: str, text: str) -> Build:
    return ninja_builds.plan_build(os.path.join(directory, "build.ninja"), text)


def _write_plan(run: Callable[..., None], flags: Iterable[str]) -> str:
    """The build.ninja that torch would write now; it does not depend on the directory."""
    directory = tempfile.mkdtemp(dir=private_directory.get_process_directory())
    try:
        with compiles.override_scope(is_planning=True):
            # A copy, since torch appends to it.
            run(directory, extra_ldflags=list(flags), verbose=False)
        with open(os.path.join(directory, "build.ninja"), errors="surrogateescape") as file:
            return file.read()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def make_private_directory(name: str) -> str:
    """Return a path to ``name`` in a new private directory, which lasts as long as this process. Raises OSError."""
    return os.path.join(tempfile.mkdtemp(dir=private_directory.get_process_directory()), name)


def report_private_build(name: str, directory: str, private: str, why: str, variable: str, error: Exception) -> None:
    """Report that ``name`` was built in ``private`` because ``directory`` cannot be used, for the reason ``why``.

    ``variable``: the environment variable that names another directory. Raises the reason's error in strict mode.
    """
    message = f"cannot use the build directory {directory}"
    remedy = f"Built {name} in {private}. Help: export {variable}=DIR  # or mend what is wrong there"
    events.report(Reason.UNUSABLE_DIRECTORY, message, why=why, cause=directory, remedy=remedy, error=error)


def has_built(directory: str) -> bool:
    """Tell whether build() has been called for ``directory`` in this process."""
    return directory in _verified.now


def admit(directory: str, name: str) -> str:
    """Return where to load the library ``name`` from: verified if build() has been called for ``directory``.

    Raises EntryRefusedError, in default mode too, and OSError.
    """
    place = _verified.now.get(directory)
    path = os.path.join(place or directory, name)
    return (
        exec_directory.place_executable(path) if place is None else exec_directory.find_load_path(CodeFile(path, place))
    )
