"""torch._inductor.aoti_eager: operators that are compiled one by one, found again by JSON files that name libraries."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safecache.code import gate, sources
from safecache.errors import SafecacheError
from safecache.reporting import events
from safecache.reporting.kinds import Kind

__all__ = ["cache_dir", "compile_operator", "load_cache"]


def cache_dir(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Path:
    """aoti_eager_cache_dir: where others can write, one of this process alone."""
    return Path(sources.reachable(str(wrapped(*args, **kwargs))))


def load_cache(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """load_aoti_eager_cache: C++ loads the libraries that it returns. One that is refused is compiled again."""

    def load(ns: str, op_func_name_with_overload: str, device_type: str) -> Any:
        if _has_backend(device_type):
            return wrapped(ns, op_func_name_with_overload, device_type)
        root, listing = _places(ns, op_func_name_with_overload, device_type)
        if not sources.settle_side_file(listing, root, Kind.SOURCE):
            return []
        found = wrapped(ns, op_func_name_with_overload, device_type)
        for item in found:
            place = sources.admit_side_file(item["kernel_path"], root)
            if place is None:
                return []
            item["kernel_path"] = place
        return found

    return _said(lambda: load(*args, **kwargs))


def compile_operator(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """aoti_compile_with_persistent_cache: adds to the JSON file, if it is ours, and attests both."""

    def build(ns: str, op_func_name_with_overload: str, device_type: str, *rest: Any, **named: Any) -> str:
        if _has_backend(device_type):
            return str(wrapped(ns, op_func_name_with_overload, device_type, *rest, **named))
        root, listing = _places(ns, op_func_name_with_overload, device_type)
        sources.settle_side_file(listing, root, Kind.SOURCE)
        library: str = wrapped(ns, op_func_name_with_overload, device_type, *rest, **named)
        if library:  # empty for what cannot be compiled
            gate.keep(library, root)
            gate.keep(listing, root, Kind.SOURCE)
        return library

    return _said(lambda: build(*args, **kwargs))


def _said(call: Callable[[], Any]) -> Any:
    """What ``call`` returns. An error of ours is logged too: C++ calls these, and drops what they raise."""
    try:
        return call()
    except SafecacheError as error:
        events.say(logging.ERROR, str(error))
        raise


def _places(namespace: str, operator: str, device: str) -> tuple[str, str]:
    """The directory of the operators, and the JSON file of this one."""
    root = str(_module().aoti_eager_cache_dir(namespace, device))
    return root, os.path.join(root, f"{operator}.json")


def _has_backend(device: str) -> bool:
    """Whether the device has a cache of its own, of which nothing is known here (torch 2.12)."""
    return device in getattr(_module(), "_aoti_compile_backends", {})


def _module() -> Any:
    return sys.modules["torch._inductor.aoti_eager"]
