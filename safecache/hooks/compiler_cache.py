"""torch.compiler: mega-caches, compiled functions that are loaded, and the files of the bisector."""

from __future__ import annotations

import locale
import os
from collections.abc import Callable
from typing import Any

from safecache.code import gate, sources
from safecache.reporting import events
from safecache.reporting.kinds import Kind

__all__ = ["deserialize", "load_compiled_function", "populate_caches", "read_bisection", "write_bisection"]


def deserialize(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """CacheArtifactManager.deserialize: one that claims to hold what it does not is None, as one that is damaged."""
    from safecache.entries import mega_caches

    def parse(serialized_artifacts: bytes) -> Any:
        with events.reading():
            return wrapped(serialized_artifacts) if mega_caches.accept(serialized_artifacts) else None

    return parse(*args, **kwargs)


def populate_caches(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """CacheArtifactManager.populate_caches: what fails verification is left out, and is not in the result."""
    from safecache.entries import mega_caches

    def populate(artifacts: dict[str, list[Any]]) -> Any:
        with events.reading():
            return wrapped(mega_caches.admitted(artifacts))

    return populate(*args, **kwargs)


def load_compiled_function(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """load_compiled_function: AOTCompiledFunction.deserialize does the verifying."""

    from safecache.entries import artifacts

    def load(file: Any, **named: Any) -> Any:
        with artifacts.origin(str(getattr(file, "name", ""))):
            return wrapped(file, **named)

    return load(*args, **kwargs)


def read_bisection(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """CompilerBisector.read_lines_from_file: what no bisection that we know of has written is no state of one."""

    def read(file_path: str) -> Any:
        if not os.path.lexists(file_path):  # as good as always
            return []
        place = sources.admit_side_file(file_path, instance.get_dir(), Kind.SOURCE)
        return [] if place is None else wrapped(place)

    return read(*args, **kwargs)


def write_bisection(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """CompilerBisector.write_lines_to_file: attested before it is there, for other processes of the bisection."""

    def write(file_path: str, lines: list[str], **how: Any) -> None:
        before = instance.read_lines_from_file(file_path) if how.get("append") else []
        content = "".join([*before, *lines]).encode(locale.getpreferredencoding(False))
        gate.keep(file_path, instance.get_dir(), Kind.SOURCE, content)
        wrapped(file_path, lines, **how)

    write(*args, **kwargs)
