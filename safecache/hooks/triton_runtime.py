"""Triton: kernels made from a group of files, its helpers in C, and the error of its cache."""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from safecache import loads
from safecache.code import exec_directory, triton_files
from safecache.ports import Use, plugs
from safecache.reporting.kinds import Kind

__all__ = ["build", "init_kernel", "load_module_from_path", "raise_triton_cache_load_error"]


def init_kernel(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """CompiledKernel.__init__, which reads the files of a group by name: from memory if they cannot be read again.

    What was found in a cache is announced to the load guard.
    """

    def make(src: Any, metadata_group: Mapping[str, str], hash: str) -> None:
        directory = _directory(hash)
        write = triton_files.current_write()
        is_made = directory in map(os.path.dirname, write.digests)
        write.read_back(lambda group: wrapped(src, group, hash), metadata_group)
        if not is_made:
            root, name = os.path.split(directory)
            plugs.load_guard.announce(Use(Kind.KERNEL, root, [name], instance, forgives=True))

    make(*args, **kwargs)


def _directory(hash: str) -> str:
    """Where the kernel lies with this hash of its cache key, in hex: triton.runtime.cache, get_cache_manager()."""
    name = base64.b32encode(bytes.fromhex(hash)).decode().rstrip("=")
    return os.path.join(sys.modules["triton"].knobs.cache.dir, name)


def build(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """_build: says what to install if there is no compiler, or no Python.h."""
    language = "C++" if kwargs.get("language") == "c++" or args[7:] == ("c++",) else "C"
    purpose = "Triton compiles its driver helper and the launchers of its kernels with it"
    return loads.explain_build(wrapped, args, kwargs, purpose, language=language)


def load_module_from_path(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """_load_module_from_path: explains a failure to load from a noexec mount."""

    def load(name: str, path: str) -> Any:
        explained = partial(
            loads.explain_load, wrapped, (name, exec_directory.executable_path(path)), {}, "TRITON_CACHE_DIR"
        )
        directory, name = os.path.split(path)
        root, key = os.path.split(directory)
        return plugs.load_guard.load(Use(Kind.NATIVE_CODE, root, [os.path.join(key, name)]), explained)

    return load(*args, **kwargs)


def raise_triton_cache_load_error(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """_raise_triton_cache_load_error: an error that is explained already is raised without torch's guess on top."""

    def explain(exc: BaseException) -> None:
        if loads.is_explained(exc):
            raise exc
        wrapped(exc)

    explain(*args, **kwargs)
