"""What Inductor generates: sources, written and read again to be executed, and the libraries built of them."""

from __future__ import annotations

import copy
import locale
import os
import shlex
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from safecache.code import gate, gpu_binaries, layer_copies, lock_guards, private_build, sources
from safecache.entries import copies
from safecache.files import folders, private_directory, temporaries
from safecache.reporting import events
from safecache.reporting.kinds import Kind, Reason
from safecache.signing import keyring
from safecache.store import entry_files
from safecache.tiers import directory_faults, fallback, layers

__all__ = [
    "LOADED",
    "build",
    "failure",
    "get_target_file_path",
    "guarding",
    "init",
    "init_builder",
    "reload_python_module",
    "root_of",
    "worker_compile_cpp",
    "write",
    "write_atomic",
    "write_to_disk",
]

# What torch puts beside a probe of vector instructions that could be loaded.
LOADED = ".load_ok"
_SCRATCH = "CxxBuild"


class _Thread(threading.local):
    guarded = False
    failure: Exception | None = None
    # What no layer had in this lookup, as far as it has come: torch asks for the same path more than once.
    absent: set[str]
    # What write_atomic has written last.
    written = ""

    def __init__(self) -> None:
        self.absent = set()


_thread = _Thread()
# The Python that was generated last, by path: until torch reads it, it may be gone, or be exchanged.
_MOST_REMEMBERED = 16
_generated: dict[str, bytes] = {}


def failure() -> Exception | None:
    """What the last build that this thread was guarding has raised, if that; None since it was asked for."""
    failed, _thread.failure = _thread.failure, None
    return failed


@contextmanager
def guarding(guarded: bool = True) -> Iterator[None]:
    """Around code that builds a library unless there is one: what it finds is verified, what it builds vouched for."""
    outer, _thread.guarded = _thread.guarded, guarded
    if not outer:
        _thread.absent.clear()
    try:
        yield
    finally:
        _thread.guarded = outer


def write(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """codecache.write: a file that is there already holds what would have been written, or is replaced."""

    def write_source(content: str | bytes, *rest: Any, **named: Any) -> Any:
        if "specified_dir" in named:
            named["specified_dir"] = _own_headers(named["specified_dir"])

        def again() -> tuple[str, str]:
            name, path = wrapped(content, *rest, **named)
            return name, path

        _thread.written = ""
        name, path = again()
        _settle(path, content, again)
        _send(path)
        if path.endswith(".py"):
            _remember(path, content)
        elif path.endswith(gpu_binaries.ENDINGS):
            path = gpu_binaries.place(path, root_of(path), _encoded(content))
        return name, path

    if kwargs.get("specified_dir"):  # that of the precompiled headers: precompile_header looks after it
        return write_source(*args, **kwargs)
    return fallback.attempt(lambda: write_source(*args, **kwargs))


def write_atomic(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """write_atomic: torch's own temporary files are named after process and thread, which two containers can share."""

    def write_file(path_: Any, content: Any, make_dirs: bool = False, encode_utf_8: bool = False) -> None:
        if isinstance(content, (str, bytes)):
            encoded = content.encode("utf-8") if encode_utf_8 and isinstance(content, str) else _encoded(content)
            _thread.written = os.fspath(path_)
            entry_files.write(_thread.written, encoded, make_directories=make_dirs)
        else:
            wrapped(path_, content, make_dirs, encode_utf_8)  # which says that it cannot be written

    write_file(*args, **kwargs)


def _send(path: str) -> None:
    """Have the source at ``path`` in a shared level too, if it was written just now."""
    if _thread.written == path:
        copies.send(path, Kind.SOURCE, anew=False)


def _own_headers(directory: str) -> str:
    """For precompiled headers, a directory of each key: they lie outside of the cache, where all of a user's meet.

    The next process with another key, or stock torch, would otherwise make them anew each time, of some 150 MB.
    """
    key = keyring.current().signing
    if key is None or directory != getattr(_codecache(), "_HEADER_DIR", None):
        return directory
    return os.path.join(directory, f"safecache-{key.id.hex()}")


def write_to_disk(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> str:
    """CompiledFxGraph.write_to_disk: likewise, with the source in the entry, which is verified."""

    def write_again() -> str:
        _thread.written = ""
        path: str = wrapped(*args, **kwargs)
        _settle(path, instance.source_code, lambda: wrapped(*args, **kwargs))
        _send(path)
        _remember(path, instance.source_code)
        return path

    return fallback.attempt(write_again)


def init(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """CompiledFxGraph.__init__: its entry will hold the source that was generated, not what lies there by now."""

    def initialise(current_callable: Any, graph: Any, *rest: Any, **named: Any) -> None:
        path = graph.cache_path
        generated = _generated.get(path)
        try:
            wrapped(current_callable, graph, *rest, **named)
        except OSError:
            if generated is None:
                raise
            graph.cache_path = private_directory.make(os.path.basename(path), generated)
            try:
                wrapped(current_callable, graph, *rest, **named)
            finally:
                graph.cache_path = path
        if generated is not None:
            instance.source_code = generated.decode(locale.getpreferredencoding(False))

    initialise(*args, **kwargs)


def _remember(path: str, content: str | bytes) -> None:
    _generated[path] = _encoded(content)
    for forgotten in list(_generated)[:-_MOST_REMEMBERED]:
        _generated.pop(forgotten, None)


def _encoded(content: str | bytes) -> bytes:
    # As torch's write_atomic has the locale encode it.
    return content.encode(locale.getpreferredencoding(False)) if isinstance(content, str) else content


def _settle(path: str, content: str | bytes, again: Callable[[], Any]) -> None:
    source = _encoded(content)
    if not sources.settle(path, source, root_of(path)):
        again()
        sources.vouch(path, source)


def reload_python_module(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """_reload_python_module: executes what was verified."""

    def reload(key: str, path: str, *rest: Any, **named: Any) -> Any:
        source = _source(path, key, _generated.get(path))
        module = wrapped(key, source, *rest, **named)
        module.__file__ = path
        return module

    return reload(*args, **kwargs)


def _source(path: str, key: str, generated: bytes | None) -> str:
    try:
        return sources.admit(path, key, _codecache().code_hash)
    except OSError:
        if generated is not None:
            with suppress(OSError):  # as where no more files can be opened: then what torch itself would meet
                return private_directory.make(os.path.basename(path), generated)
        raise


def worker_compile_cpp(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """_worker_compile_cpp: builds, under its lock, unless all targets are there and vouched for."""

    def compile(lock_path: str, cpp_builders: Sequence[Any]) -> Any:
        if all(_is_attested(builder.get_target_file_path()) for builder in cpp_builders):
            return None
        with guarding(), lock_guards.guarding(None):
            return wrapped(lock_path, cpp_builders)

    return compile(*args, **kwargs)


def _is_attested(path: str) -> bool:
    # A precompiled header of 150 MB is looked at when something is built with it.
    return os.path.isfile(path) if private_build.is_dispensable(path) else gate.is_attested(path, root_of(path))


def init_builder(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """CppBuilder.__init__: it tells the compile worker that it may be sent to what its sources are."""

    def initialise(name: str, sources: str | list[str], BuildOption: Any, *rest: Any, **named: Any) -> None:
        wrapped(name, sources, BuildOption, *rest, **named)
        header = getattr(BuildOption, "precompiled_header", None)
        paths = [sources] if isinstance(sources, str) else sources
        instance._safecache_sources = gate.digests([*paths, *([header] if header else [])])

    initialise(*args, **kwargs)


def get_target_file_path(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> str:
    """CppBuilder.get_target_file_path: asked, in there, whether there is a file; one that is not vouched for goes."""
    path: str = wrapped(*args, **kwargs)
    # A precompiled header of 150 MB is looked at when something is built with it.
    if _thread.guarded and not private_build.is_dispensable(path):
        root = root_of(path)
        try:
            is_there = gate.admit_build(path, root)
            _settle_marker(path + LOADED, root, is_there)
        except directory_faults.Unsettled as error:
            _thread.failure = error
            raise
        if not is_there and path not in _thread.absent and layers.exist(root):
            _take_from_layer(path, root)
    return path


def _settle_marker(path: str, root: str, is_there: bool) -> None:
    """A note that a probe could be loaded goes with its probe, and if nobody vouches for it."""
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


def build(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """CppBuilder.build: what it built is vouched for; it was built where nobody else could interfere."""
    if not _thread.guarded:
        return wrapped(*args, **kwargs)
    sources_of_parent = getattr(instance, "_safecache_sources", None)
    gate.learn(sources_of_parent or {})
    with guarding(False):
        path = instance.get_target_file_path()
        root = root_of(path)
        result = None
        privately = private_build.is_needed(path) and _build_privately(instance, path, root)
        if not privately:
            command = shlex.split(instance.get_command_line())
            if sources_of_parent is not None:
                private_build.check_inputs(command, path, root, getattr(_codecache(), "_HEADER_DIR", ""))
            if private_build.is_dispensable(path) and command.count(path) == 1:
                _build_unseen(instance, command, path, root)
            else:
                result = _build(lambda: wrapped(*args, **kwargs), instance)
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


def _codecache() -> Any:
    return sys.modules["torch._inductor.codecache"]


def root_of(path: str) -> str:
    """The directory that ``path`` is kept below: the cache, or that of the precompiled headers."""
    cache: str = _codecache().cache_dir()
    return cache if path.startswith(os.path.join(cache, "")) else os.path.dirname(path)
