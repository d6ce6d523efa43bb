"""What Inductor generates: sources, written and read back to be executed, and the libraries built from them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from safecache import compiles
from safecache.code import generated, library_builds
from safecache.tiers import fallback

__all__ = [
    "build",
    "get_target_file_path",
    "init",
    "init_builder",
    "reload_python_module",
    "worker_compile_cpp",
    "write",
    "write_atomic",
    "write_to_disk",
]


def write(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """codecache.write: an existing file is replaced unless it holds what would have been written."""

    def write_source(content: str | bytes, *rest: Any, **named: Any) -> Any:
        if "specified_dir" in named:
            named["specified_dir"] = generated.header_directory(named["specified_dir"])
        name, path = generated.put(lambda: wrapped(content, *rest, **named), content)
        library_builds.current_build().note_source(path)
        return name, path

    if kwargs.get("specified_dir"):  # of the precompiled headers: precompile_header handles its failures
        return write_source(*args, **kwargs)
    return fallback.attempt(lambda: write_source(*args, **kwargs))


def write_atomic(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """write_atomic: the file appears whole."""

    def write_file(path_: Any, content: Any, make_dirs: bool = False, encode_utf_8: bool = False) -> None:
        if isinstance(content, (str, bytes)):
            path = os.fspath(path_)
            generated.write_file(path, content, encode_utf_8=encode_utf_8, make_directories=make_dirs)
        else:
            wrapped(path_, content, make_dirs, encode_utf_8)  # raises torch's error for such content

    write_file(*args, **kwargs)


def write_to_disk(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> str:
    """CompiledFxGraph.write_to_disk: as write(), of the source in the entry."""
    return fallback.attempt(lambda: generated.put_again(lambda: wrapped(*args, **kwargs), instance.source_code))


def init(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """CompiledFxGraph.__init__: its entry gets the source that was generated, whatever the file holds by now."""

    def initialise(current_callable: Any, graph: Any, *rest: Any, **named: Any) -> None:
        generated.initialise(graph, instance, lambda: wrapped(current_callable, graph, *rest, **named))

    initialise(*args, **kwargs)


def reload_python_module(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """_reload_python_module: executes the verified source. Raises EntryRefusedError if nothing attests it."""

    def reload(key: str, path: str, *rest: Any, **named: Any) -> Any:
        module = wrapped(key, generated.read(path, key), *rest, **named)
        module.__file__ = path
        return module

    return reload(*args, **kwargs)


def worker_compile_cpp(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """_worker_compile_cpp: builds, under its lock, unless all targets exist and are attested."""

    def compile(lock_path: str, cpp_builders: Sequence[Any]) -> Any:
        if library_builds.are_attested(builder.get_target_file_path() for builder in cpp_builders):
            return None
        with compiles.scope(build=library_builds.Build(verifies=True), lock_guard=None):
            return wrapped(lock_path, cpp_builders)

    return compile(*args, **kwargs)


def init_builder(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """CppBuilder.__init__: records the digests of its sources for the compile worker that it may be sent to."""

    def initialise(name: str, sources: str | list[str], BuildOption: Any, *rest: Any, **named: Any) -> None:
        wrapped(name, sources, BuildOption, *rest, **named)
        library_builds.attach_inputs(instance, sources, BuildOption)

    initialise(*args, **kwargs)


def get_target_file_path(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> str:
    """CppBuilder.get_target_file_path: quarantines an unattested file before torch asks whether there is one."""
    path: str = wrapped(*args, **kwargs)
    library_builds.current_build().settle_target(path)
    return path


def build(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """CppBuilder.build: builds where nobody else can interfere, and attests the result."""
    return library_builds.current_build().run(lambda: wrapped(*args, **kwargs), instance)
