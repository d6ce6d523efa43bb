"""Libraries that Inductor builds of what it generated: each is found verified, or built out of the reach of others."""

from __future__ import annotations

import copy
import os
import shlex
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from safecache.code import gate, generated, layer_copies, private_build
from safecache.code.generated import root_of
from safecache.entries import copies
from safecache.files import folders, private_directory, temporaries
from safecache.reporting import events
from safecache.reporting.kinds import Kind, Reason
from safecache.store import entry_files
from safecache.tiers import directory_faults, layers

__all__ = ["LOADED", "are_attested", "build", "failure", "guarding", "settle", "tell_inputs"]

# What torch puts beside a probe of vector instructions that could be loaded.
LOADED = ".load_ok"
_SCRATCH = "CxxBuild"


class _Thread(threading.local):
    guarded = False
    failure: Exception | None = None
    # What no layer had in this lookup, as far as it has come: torch asks for the same path more than once.
    absent: set[str]

    def __init__(self) -> None:
        self.absent = set()


_thread = _Thread()


def failure() -> Exception | None:
    """What the last build that this thread was guarding has raised, if that; None since it was asked for."""
    failed, _thread.failure = _thread.failure, None
    return failed


@contextmanager
def guarding(guarded: bool = True) -> Iterator[None]:
    """Around code that builds a library unless there is one: what it finds is verified, what it builds attested."""
    outer, _thread.guarded = _thread.guarded, guarded
    if not outer:
        _thread.absent.clear()
    try:
        yield
    finally:
        _thread.guarded = outer


def are_attested(paths: Iterable[str]) -> bool:
    """Whether all of these are there, and a trusted record states each."""
    return all(map(_is_attested, paths))


def _is_attested(path: str) -> bool:
    # A precompiled header of 150 MB is looked at when something is built with it.
    return os.path.isfile(path) if private_build.is_dispensable(path) else gate.is_attested(path, root_of(path))


def tell_inputs(builder: Any, sources: str | list[str], options: Any) -> None:
    """Have the builder say, to the compile worker that it may be sent to, what its sources are."""
    header = getattr(options, "precompiled_header", None)
    paths = [sources] if isinstance(sources, str) else sources
    builder._safecache_sources = gate.digests([*paths, *([header] if header else [])])


def settle(path: str) -> None:
    """In guarding(), where torch asks whether there is a file at ``path``: one that nothing attests goes.

    Or comes, from a layer. Raises directory_faults.Unsettled.
    """
    # A precompiled header of 150 MB is looked at when something is built with it.
    if not _thread.guarded or private_build.is_dispensable(path):
        return
    root = root_of(path)
    try:
        is_there = gate.admit_build(path, root)
        _settle_marker(path + LOADED, root, is_there)
    except directory_faults.Unsettled as error:
        _thread.failure = error
        raise
    if not is_there and path not in _thread.absent and layers.exist(root):
        _take_from_layer(path, root)


def _settle_marker(path: str, root: str, is_there: bool) -> None:
    """A note that a probe could be loaded goes with its probe, and if nothing attests it."""
    if is_there and os.path.lexists(path):
        gate.admit_build(path, root)
    elif os.path.lexists(path):
        entry_files.quarantine(path, root, Reason.UNSEALED)


def _take_from_layer(path: str, root: str) -> None:
    place = layer_copies.take(path, root)
    if place is None:
        _thread.absent.add(path)
    # Beside a probe of vector instructions lies a note that it could be loaded; its record says on which CPU.
    marker = path + LOADED
    if place is not None and not os.path.lexists(marker):
        layer_copies.take(marker, root)


def build(make: Callable[[], Any], builder: Any) -> Any:
    """What ``make`` returns, which has the builder build its library; in guarding() out of the reach of others.

    Then a record attests the library. Raises what the build does.
    """
    if not _thread.guarded:
        return make()
    sources_of_parent = getattr(builder, "_safecache_sources", None)
    gate.learn(sources_of_parent or {})
    with guarding(False):
        path = builder.get_target_file_path()
        root = root_of(path)
        result = None
        privately = private_build.is_needed(path) and _build_privately(builder, path, root)
        if not privately:
            command = shlex.split(builder.get_command_line())
            if sources_of_parent is not None:
                private_build.check_inputs(command, path, root, generated.headers_folder() or "")
            if private_build.is_dispensable(path) and command.count(path) == 1:
                _build_unseen(builder, command, path, root)
            else:
                result = _build(make, builder)
                gate.keep(path, root)
    copies.send(path, Kind.NATIVE_CODE)
    return result


def _build_unseen(builder: Any, command: list[str], path: str, root: str) -> None:
    """A precompiled header is looked for without a lock: it appears whole, and after its record."""
    unseen = copy.copy(builder)
    with temporaries.beside(path) as temporary:
        unseen.get_command_line = lambda: shlex.join([temporary if word == path else word for word in command])
        _build(unseen.build, builder)
        gate.keep(path, root, made_at=temporary)
        with folders.above(root, path) as (folder, name):
            folder.rename(os.path.basename(temporary), folder, name)


def _build(make: Callable[[], Any], builder: Any) -> Any:
    try:
        return make()
    except Exception as error:
        _thread.failure = error
        # The directory that the compiler ran in.
        with suppress(OSError), folders.opened(builder._output_dir) as folder:
            folder.rmdir(f"{builder._name}_{_SCRATCH}")
        raise


def _build_privately(builder: Any, path: str, root: str) -> bool:
    """Build ``path`` in a private directory and publish it; False, and a warning, if this builder is unlike we know."""
    with private_directory.made() as directory:
        command = private_build.command(shlex.split(builder.get_command_line()), path, root, directory)
        if command is not None:
            private = copy.copy(builder)
            private._name, private._output_dir = "build", directory
            private.get_command_line = lambda: shlex.join(command)
            try:
                private.build()
            except Exception:
                if not private_build.is_dispensable(path):
                    raise
                return True
            if private_build.publish(directory, path, root):
                return True
    message = f"{path} was built where others can write, for what it is built of is not known to safecache."
    events.report(Reason.STOOD_DOWN, message, cause=root, remedy="Build where nobody else can.")
    return False
