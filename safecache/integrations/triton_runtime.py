"""Triton: what is about to be compiled, kernels made from a group of files, its helpers in C, and its cache's error."""

from __future__ import annotations

import base64
import math
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from safecache import compiles, load_errors
from safecache.built_code import exec_directory, triton_files
from safecache.patching.hook import hook, verifier
from safecache.ports import KernelRequest, Use, plugs
from safecache.reporting.kinds import Kind

__all__ = ["build", "compile", "get_cache_key", "init_kernel", "load_module_from_path", "raise_triton_cache_load_error"]

# The hook that upstream supports, and why it does not do.
_INSTEAD_IMPL = "triton.knobs.build.impl: it builds in Triton's place, and in that of a user's own"
_INSTEAD_LISTENER = "triton.knobs.compilation.listener: it hears of compiles that are over"


@hook(
    # Each of these modules may have imported it from the one before, before it was hooked.
    ("triton.compiler.compiler:compile", "triton.compiler:compile", "triton:compile"),
    "src, target=, options=, _env_vars=",
    why="Triton runs LLVM and MLIR in the calling process, so one compiler abort kills the whole process.",
    issue="https://github.com/triton-lang/triton/issues/11747",
    instead=_INSTEAD_LISTENER,
)
def compile(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """triton.compile, which can pass through several of these, one for each module."""

    def compile_kernel(src: Any, target: Any = None, options: Any = None, _env_vars: Any = None) -> Any:
        if compiles.current.makes_kernel:
            return wrapped(*args, **kwargs)
        flight = plugs.single_flight.compile_scope(Kind.KERNEL, math.inf)
        with compiles.override_scope(makes_kernel=True, is_told=False), triton_files.kernel_scope(), flight:
            return plugs.compiler.compile(src, (target, options, _env_vars), lambda: wrapped(*args, **kwargs))

    return compile_kernel(*args, **kwargs)


@hook(
    "triton.compiler.compiler:get_cache_key(src, backend, backend_options, env_vars)",
    why="Triton asks its cache by file name only, so the lookup does not know which kernel a miss will compile.",
    issue="https://github.com/triton-lang/triton/blob/v3.9.0/python/triton/compiler/compiler.py#L246",
    instead=_INSTEAD_LISTENER,
)
def get_cache_key(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> str:
    """get_cache_key, as triton.compile() calls it: notes what it is of."""

    def compute_key(src: Any, backend: Any, backend_options: Any, env_vars: Any) -> str:
        plugs.compiler.begin()
        key: str = wrapped(src, backend, backend_options, env_vars)
        request = KernelRequest(src, backend, backend_options, key, env_vars)
        plugs.compiler.request(request)  # which may raise: then this thread does not look it up
        compiles.current.kernel = request
        return key

    return compute_key(*args, **kwargs)


@verifier(
    "triton.compiler.compiler:CompiledKernel.__init__(self, src, metadata_group, hash)",
    why="Triton reads the files of a kernel back by name, even just after writing them, and a vanished file ends "
    "the compile.",
    issue="https://github.com/triton-lang/triton/pull/11869",
)
def init_kernel(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """CompiledKernel.__init__, which reads the files of a group by name: from memory if they cannot be read again.

    What was found in a cache is announced to the load guard.
    """

    def make_kernel(src: Any, metadata_group: Mapping[str, str], hash: str) -> None:
        # As in Triton's get_cache_manager().
        name = base64.b32encode(bytes.fromhex(hash)).decode().rstrip("=")
        directory = os.path.join(sys.modules["triton"].knobs.cache.dir, name)
        write = triton_files.current_write()
        is_made = directory in map(os.path.dirname, write.digests)
        write.read_back(lambda group: wrapped(src, group, hash), metadata_group)
        if not is_made:
            plugs.load_guard.announce(Use(Kind.KERNEL, os.path.dirname(directory), [name], instance, forgives=True))

    make_kernel(*args, **kwargs)


@hook(
    "triton.runtime.build:_build(name, src, srcdir, library_dirs, include_dirs, libraries, ccflags)",  # 3.6, 3.7
    "name, src, srcdir, library_dirs, include_dirs, libraries, ccflags, language=",
    why="Without a C compiler or Python.h, Triton fails with a bare error that does not say what to install.",
    issue="https://github.com/pytorch/pytorch/issues/129351",
    instead=_INSTEAD_IMPL,
)
def build(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """_build: says what to install if there is no compiler, or no Python.h."""
    language = "C++" if kwargs.get("language") == "c++" or args[7:] == ("c++",) else "C"
    purpose = "Triton compiles its driver helper and the launchers of its kernels with it"
    return load_errors.explain_build(wrapped, args, kwargs, purpose, language=language)


@hook(
    "triton.runtime.build:_load_module_from_path(name, path)",
    why="From a noexec mount, dlopen of a helper of Triton's fails with an error that does not name the mount.",
    issue="https://github.com/pytorch/pytorch/issues/123054",
)
def load_module_from_path(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """_load_module_from_path: explains a failure to load from a noexec mount."""

    def load(name: str, path: str) -> Any:
        explained = partial(
            load_errors.explain_load, wrapped, (name, exec_directory.place_executable(path)), {}, "TRITON_CACHE_DIR"
        )
        directory, name = os.path.split(path)
        root, key = os.path.split(directory)
        return plugs.load_guard.load(Use(Kind.NATIVE_CODE, root, [os.path.join(key, name)]), explained)

    return load(*args, **kwargs)


@hook(
    "torch.utils._triton:_raise_triton_cache_load_error(exc)",
    why="Torch guesses a noexec cache from the text of any load error, and puts that guess over the real explanation.",
    issue="https://github.com/pytorch/pytorch/pull/184362",
    since=(2, 13),
)
def raise_triton_cache_load_error(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """_raise_triton_cache_load_error: an error that is explained already is raised without torch's guess on top."""

    def explain(exc: BaseException) -> None:
        if load_errors.is_explained(exc):
            raise exc
        wrapped(exc)

    explain(*args, **kwargs)
