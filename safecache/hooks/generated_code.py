"""What Inductor generates: sources, written and read again to be executed, and the libraries built of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from safecache.code import generated, library_builds, lock_guards
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
    """codecache.write: a file that is there already holds what would have been written, or is replaced."""

    def write_source(content: str | bytes, *rest: Any, **named: Any) -> Any:
        if "specified_dir" in named:
            named["specified_dir"] = generated.header_directory(named["specified_dir"])
        return generated.put(lambda: wrapped(content, *rest, **named), content)

    if kwargs.get("specified_dir"):  # that of the precompiled headers: precompile_header looks after it
        return write_source(*args, **kwargs)
    return fallback.attempt(lambda: write_source(*args, **kwargs))


def write_atomic(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """write_atomic: the file appears whole."""

    def write_file(path_: Any, content: Any, make_dirs: bool = False, encode_utf_8: bool = False) -> None:
        if isinstance(content, (str, bytes)):
            path = os.fspath(path_)
            generated.write_file(path, content, encode_utf_8=encode_utf_8, make_directories=make_dirs)
        else:
            wrapped(path_, content, make_dirs, encode_utf_8)  # which says that it cannot be written

    write_file(*args, **kwargs)


def write_to_disk(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> str:
    """CompiledFxGraph.write_to_disk: as write(), with the source in the entry."""
    return fallback.attempt(lambda: generated.put_again(lambda: wrapped(*args, **kwargs), instance.source_code))


def init(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """CompiledFxGraph.__init__: its entry will hold the source that was generated."""

    def initialise(current_callable: Any, graph: Any, *rest: Any, **named: Any) -> None:
        generated.initialise(graph, instance, lambda: wrapped(current_callable, graph, *rest, **named))

    initialise(*args, **kwargs)


def reload_python_module(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """_reload_python_module: executes what was verified."""

    def reload(key: str, path: str, *rest: Any, **named: Any) -> Any:
        module = wrapped(key, generated.read(path, key), *rest, **named)
        module.__file__ = path
        return module

    return reload(*args, **kwargs)


def worker_compile_cpp(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """_worker_compile_cpp: builds, under its lock, unless all targets are there and attested."""

    def compile(lock_path: str, cpp_builders: Sequence[Any]) -> Any:
        if library_builds.are_attested(builder.get_target_file_path() for builder in cpp_builders):
            return None
        with library_builds.guarding(), lock_guards.guarding(None):
            return wrapped(lock_path, cpp_builders)

    return compile(*args, **kwargs)


def init_builder(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """CppBuilder.__init__: it tells the compile worker that it may be sent to what its sources are."""

    def initialise(name: str, sources: str | list[str], BuildOption: Any, *rest: Any, **named: Any) -> None:
        wrapped(name, sources, BuildOption, *rest, **named)
        library_builds.tell_inputs(instance, sources, BuildOption)

    initialise(*args, **kwargs)


def get_target_file_path(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> str:
    """CppBuilder.get_target_file_path: asked, in there, whether there is a file; one that nothing attests goes."""
    path: str = wrapped(*args, **kwargs)
    library_builds.settle(path)
    return path


def build(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """CppBuilder.build: what it built is attested; it was built where nobody else could interfere."""
    return library_builds.build(lambda: wrapped(*args, **kwargs), instance)
