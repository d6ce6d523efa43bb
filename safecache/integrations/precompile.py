"""torch._precompile: functions compiled ahead of time to Python source and a cache, of which both are executed.

The cache has the seal, under the digest of the source: torch binds the two by a digest too, but by one that anybody can
compute.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from typing import Any

from safecache.patching.hook import verifier

__all__ = ["load", "read_artifact", "to_cache_bytes", "write_artifact"]


@verifier(
    "torch._precompile:PrecompiledModule.to_cache_bytes(self, python_code=)",
    why="Stock torch binds cache to source only by an unkeyed SHA-256, which anyone who alters both can recompute.",
    issue="https://github.com/pytorch/pytorch/blob/v2.14.1/torch/_precompile.py",
    since=(2, 14),
    until=(2, 15),
)
def to_cache_bytes(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> bytes:
    """PrecompiledModule.to_cache_bytes (2.14): seals the bytes, whoever writes them to a file."""

    def make_bytes(python_code: str | None = None) -> bytes:
        source = instance.to_python_code() if python_code is None else python_code
        return _seal_cache(source, wrapped(source))

    return make_bytes(*args, **kwargs)


@verifier(
    "torch._precompile:_PrecompileApi.load(self, python_code, cache)",
    why="Stock torch unpickles the cache and executes the source after a mere comparison of unkeyed digests.",
    issue="https://github.com/pytorch/pytorch/blob/v2.14.1/torch/_precompile.py",
    since=(2, 14),
    until=(2, 15),
)
def load(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """_PrecompileApi.load, of bytes (2.14). Raises RefusedArtifactError, in default mode too."""

    def execute(python_code: str, cache: bytes) -> Any:
        _require_seal(python_code, cache, "given to torch.compiler.precompile.load")
        return wrapped(python_code, cache)

    return execute(*args, **kwargs)


@verifier(
    "torch._precompile:_write_artifact(artifact_path, cache_path, python_code, cache)",
    why="Stock torch writes the pair without a signature, so anyone who can write there can forge both files.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_precompile.py#L2551",
    since=(2, 15),
)
def write_artifact(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """_write_artifact: writes both files; a seal in the second covers both."""

    def write(artifact_path: Any, cache_path: Any, python_code: str, cache: bytes) -> None:
        wrapped(artifact_path, cache_path, python_code, _seal_cache(python_code, cache))

    write(*args, **kwargs)


@verifier(
    "torch._precompile:_read_artifact(artifact_path, cache_path)",
    why="Stock torch unpickles and executes what these two files hold, checked only by an unkeyed SHA-256 of the "
    "source.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_precompile.py#L2848",
    since=(2, 15),
)
def read_artifact(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """_read_artifact: verifies both files, since torch executes them. Raises as load() does."""

    def read(artifact_path: Any, cache_path: Any) -> tuple[str, bytes]:
        python_code, cache = wrapped(artifact_path, cache_path)
        _require_seal(python_code, cache, f"{os.fspath(artifact_path)} with {os.fspath(cache_path)}")
        return python_code, cache

    return read(*args, **kwargs)


def _seal_cache(source: str, cache: bytes) -> bytes:
    from safecache.entries import saving  # not at the top: torch imports the target while it is imported itself
    from safecache.reporting.kinds import Kind

    return saving.seal_payload(cache, Kind.PRECOMPILED, _digest_source(source))


def _require_seal(source: str, cache: bytes, origin: str) -> None:
    from safecache.entries import artifacts
    from safecache.reporting.kinds import Kind

    with artifacts.report_as(origin):
        artifacts.require(Kind.PRECOMPILED, cache, _digest_source(source))


def _digest_source(source: str) -> str:
    return hashlib.sha256(source.encode()).hexdigest()
