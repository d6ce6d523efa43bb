"""AOTInductor: its packages, wherever they are written and loaded: in C++, from a directory they are unpacked to."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from safecache.code import gate, generated, packages
from safecache.files import ownership
from safecache.loads import failures
from safecache.patching import targets
from safecache.reporting import events
from safecache.reporting.kinds import Reason
from safecache.signing import provenance

__all__ = ["compile", "load", "load_pt2", "package"]


def compile(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """AotCodeCompiler.compile: attests the libraries that it has just made."""
    made = wrapped(*args, **kwargs)
    for path in _paths(made):
        if path.endswith(".so"):
            root = generated.root_of(path)
            objection = ownership.why_not_private(os.path.dirname(path))
            if objection is not None:
                message = f"{path} was built where others can write: {objection}."
                events.report(Reason.STOOD_DOWN, message, cause=root, remedy="Build where nobody else can.")
            gate.keep(path, root)
    return made


def _paths(files: Any) -> Iterator[str]:
    """Those in what AOTInductor returns, or takes to package it: a path, lists of them and of weights, by model."""
    if isinstance(files, str):
        yield files
    elif isinstance(files, dict):
        for each in files.values():
            yield from _paths(each)
    elif isinstance(files, list):
        yield from (file for file in files if isinstance(file, str) and file)


def package(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """package_pt2: a package with libraries in it has the seal behind it."""

    def write(f: Any, *, aoti_files: Any = None, **named: Any) -> Any:
        if aoti_files is None:
            return wrapped(f, **named)
        sources = [(path, generated.root_of(path)) for path in _paths(aoti_files)]
        return packages.made(f, sources, lambda place: wrapped(place, aoti_files=aoti_files, **named))

    return write(*args, **kwargs)


def load(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """load_package and _load_aoti: what is loaded is verified; and what to do where it is unpacked to a noexec mount.

    Raises EntryRefusedError, in default mode too: there is no miss.
    """
    if not args and not kwargs:
        return wrapped()  # which says what is missing
    name, rest, named = _first(args, kwargs, "path", "file")
    with packages.admitted(name) as place:
        moves = provenance.torch_release() >= targets.PACKAGES_OBEY_TMPDIR_FROM
        return failures.explain_load(wrapped, (place, *rest), named, "TMPDIR" if moves else None)


def load_pt2(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """load_pt2: unpickles constants before it loads a library. What has none is a model that a person names."""
    if not args and not kwargs:
        return wrapped()
    name, rest, named = _first(args, kwargs, "f")
    if not packages.holds_code(name):
        return wrapped(name, *rest, **named)
    with packages.admitted(name) as place:
        return wrapped(place, *rest, **named)


def _first(args: Any, kwargs: Any, *names: str) -> tuple[Any, Any, Any]:
    """The first argument, that can be given by one of these ``names`` too, and the others."""
    if args:
        return args[0], args[1:], kwargs
    name = next(name for name in names if name in kwargs)
    return kwargs[name], (), {other: value for other, value in kwargs.items() if other != name}
