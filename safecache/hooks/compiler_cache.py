"""torch.compiler: mega-caches, loading of compiled functions, and the bisector's files."""

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
    """CacheArtifactManager.deserialize: None for a mega-cache whose content is not what it claims, or is damaged."""
    from safecache.entries import mega_caches

    def parse(serialized_artifacts: bytes) -> Any:
        with events.reading():
            return wrapped(serialized_artifacts) if mega_caches.accept(serialized_artifacts) else None

    return parse(*args, **kwargs)


def populate_caches(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """CacheArtifactManager.populate_caches: artifacts that fail verification are left out, of the result too."""
    from safecache.entries import mega_caches

    def populate(artifacts: dict[str, list[Any]]) -> Any:
        with events.reading():
            return wrapped(mega_caches.admitted(artifacts))

    return populate(*args, **kwargs)


def load_compiled_function(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """load_compiled_function: notes the file's name for AOTCompiledFunction.deserialize, which verifies it."""

    from safecache.entries import artifacts

    def load(file: Any, **named: Any) -> Any:
        with artifacts.origin(str(getattr(file, "name", ""))):
            return wrapped(file, **named)

    return load(*args, **kwargs)


def read_bisection(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """CompilerBisector.read_lines_from_file: an unattested file is quarantined, and read as empty."""

    def read(file_path: str) -> Any:
        if not os.path.lexists(file_path):  # nearly always
            return []
        place = sources.admit_side_file(file_path, instance.get_dir(), Kind.SOURCE)
        return [] if place is None else wrapped(place)

    return read(*args, **kwargs)


def write_bisection(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """CompilerBisector.write_lines_to_file: attests the file before it exists, for the bisection's other processes."""

    def write(file_path: str, lines: list[str], **how: Any) -> None:
        before = instance.read_lines_from_file(file_path) if how.get("append") else []
        content = "".join([*before, *lines]).encode(locale.getpreferredencoding(False))
        gate.keep(file_path, instance.get_dir(), Kind.SOURCE, content)
        wrapped(file_path, lines, **how)

    write(*args, **kwargs)
