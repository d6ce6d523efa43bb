"""torch.utils.cpp_extension: extensions compiled on use."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from safecache import loads
from safecache.code import exec_directory, gate, lock_guards
from safecache.code.extension_builds import Build
from safecache.code.lock_guards import Lock
from safecache.errors import EntryRefusedError
from safecache.files import private_directory
from safecache.reporting import events
from safecache.reporting.kinds import Reason
from safecache.settings import config
from safecache.tiers import directory_faults
from safecache.tiers.directory_faults import Immovable

__all__ = ["build_library", "import_module_from_library", "jit_compile", "run_ninja_build"]

# By build directory, where this process has built the extension, or found it attested.
_verified: dict[str, str] = {}


class _Thread(threading.local):
    # The build directory's lock, once torch has asked for it.
    lock: Lock | None = None
    # Whether only a build.ninja is wanted, and no build.
    plans = False


_thread = _Thread()


def jit_compile(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """_jit_compile: takes no lock for an attested build, since anyone who can write there could hold it."""

    def guard(lock: Lock) -> None:
        if _thread.lock is None and os.path.basename(lock.path) == "lock":
            _thread.lock = lock
            # On ROCm, sources are translated there first.
            if sys.modules["torch"].version.hip is None:
                return
        lock.take()

    outer, _thread.lock = _thread.lock, None
    try:
        with lock_guards.guarding(guard):
            return wrapped(*args, **kwargs)
    finally:
        _thread.lock = outer


def build_library(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """_write_ninja_file_and_build_library: unattested files are quarantined, so that ninja builds them again.

    Nothing is built if all is attested, whatever the file times are. Not for a setup.py, whose files are no cache.
    Raises EntryRefusedError for a refused file in strict mode, and for a standalone one that cannot be quarantined.
    """

    def build(*, name: str, build_directory: str, is_standalone: bool = False, **named: Any) -> None:
        def run(directory: str, **other: Any) -> None:
            wrapped(name=name, build_directory=directory, is_standalone=is_standalone, **{**named, **other})

        text = _plan(run, named)
        directory_faults.check(build_directory)
        planned = Build(name, build_directory, text)
        _verified[build_directory] = build_directory
        if planned.is_attested():
            return
        if _thread.lock is not None:
            _thread.lock.take()
        try:
            planned.settle()
        except Immovable as error:
            if is_standalone:  # torch reports its path
                raise EntryRefusedError(f"safecache: {error.filename}: {error.evidence}.") from error
            _verified[build_directory] = _build_privately(name, build_directory, text, run, error)
            return
        run(build_directory)
        planned.keep()

    return build(*args, **kwargs)


def _plan(run: Callable[..., None], named: dict[str, Any]) -> str:
    """The build.ninja that torch would write now; it does not depend on the directory."""
    directory = tempfile.mkdtemp(dir=private_directory.of_process())
    try:
        with _planning():
            # A copy, since torch appends to it.
            run(directory, extra_ldflags=list(named.get("extra_ldflags") or ()), verbose=False)
        with open(os.path.join(directory, "build.ninja"), errors="surrogateescape") as file:
            return file.read()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _planning() -> Iterator[None]:
    _thread.plans = True
    try:
        yield
    finally:
        _thread.plans = False


def _build_privately(name: str, directory: str, text: str, run: Callable[..., None], error: Immovable) -> str:
    """Build in a private directory that lasts as long as this process; returns it."""
    private = os.path.join(tempfile.mkdtemp(dir=private_directory.of_process()), name)
    planned = Build(name, private, text)
    planned.settle()
    run(private)
    planned.keep()
    why = f"{error.filename}: {error.evidence}"
    message = f"the build directory {directory} cannot be used: {why}. {name} was built in {private}."
    remedy = "Remove what is in the way, or let TORCH_EXTENSIONS_DIR name another directory."
    events.report(Reason.UNUSABLE_DIRECTORY, message, cause=directory, remedy=remedy, error=error)
    return private


def import_module_from_library(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """_import_module_from_library: verifies the library, and explains a failure to load it from a noexec mount.

    Raises EntryRefusedError, in default mode too.
    """

    def load(module_name: str, path: str, *rest: Any, **named: Any) -> Any:
        extension = sys.modules["torch.utils.cpp_extension"].LIB_EXT
        placed = _admit(path, f"{module_name}{extension}")
        arguments = (module_name, os.path.dirname(placed), *rest)
        return loads.explain_load(wrapped, arguments, named, "TORCH_EXTENSIONS_DIR")

    return load(*args, **kwargs)


def _admit(directory: str, name: str) -> str:
    """Where to load the library from."""
    place = _verified.get(directory)
    path = os.path.join(place or directory, name)
    verified, content = (path, None) if place is None else gate.admit_code(path, place)
    return exec_directory.place(path, content) if config.current().exec_dir else verified


def run_ninja_build(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """_run_ninja_build: says what to install if there is no compiler, or no Python.h."""
    if _thread.plans:
        return None
    return loads.explain_build(wrapped, args, kwargs, "the extension is compiled with it", language="C++")
