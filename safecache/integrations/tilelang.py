"""TileLang: the kernels, results of tuning and device binaries in its cache."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from safecache.files import folders, opening, ownership, private_directory
from safecache.patching.hook import verifier
from safecache.places.layout import CodeFile
from safecache.reporting import events, report
from safecache.reporting.kinds import Reason
from safecache.reporting.report import Refusal
from safecache.store import gate
from safecache.tiers.directory_faults import Unsettled

__all__ = [
    "load_binary",
    "load_kernel",
    "load_result",
    "namespace_root",
    "save_binary",
    "save_cubin",
    "save_kernel",
    "save_result",
]

_SOURCE = "https://github.com/tile-ai/tilelang/blob/v0.1.15/tilelang"
_CACHE = "tilelang.cache.kernel_cache:KernelCache"
_BINARIES = "tilelang.cache.binary_cache:BinaryCache"
_RESULT = "tilelang.autotuner.param:AutotuneResult"
_DIRECTORY = "TileLang loads libraries from its cache, without asking who else can write there."
_RECORD = (
    "TileLang publishes what it compiles with plain digests at most, which whoever replaces a file can replace too."
)


@verifier(f"{_CACHE}._get_namespace_root()", why=_DIRECTORY, issue=f"{_SOURCE}/cache/kernel_cache.py#L208")
@verifier(f"{_BINARIES}._get_namespace_root(cls)", why=_DIRECTORY, issue=f"{_SOURCE}/cache/binary_cache.py#L56")
def namespace_root(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> str:
    """_get_namespace_root, which all paths come from: a directory of this process alone if others can write there.

    That is reported once, and raises EntryRefusedError in strict mode.
    """
    directory = str(wrapped(*args, **kwargs))
    os.makedirs(directory, exist_ok=True)
    if not _is_exposed(directory):
        return directory
    return os.path.join(private_directory.process_directory(), "tilelang", os.path.basename(directory))


@verifier(
    f"{_CACHE}._load_kernel_from_disk(self, key, backend_context, out_idx=, pass_configs=, compile_flags=, func=, "
    "verbose=)",
    why="TileLang loads whatever library lies in its cache if a manifest beside it states the same digest.",
    issue=f"{_SOURCE}/cache/kernel_cache.py#L641",
)
def load_kernel(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """_load_kernel_from_disk: a miss unless something attests every file of the kernel.

    Raises EntryRefusedError in strict mode.
    """

    def load(key: str, *rest: Any, **named: Any) -> Any:
        return wrapped(key, *rest, **named) if _is_attested(instance._get_cache_path(key)) else None

    return load(*args, **kwargs)


@verifier(
    f"{_RESULT}.load_from_disk(cls, path, compile_args)",
    why="TileLang's autotuner unpickles a function from the cache, and loads a library, without any check.",
    issue=f"{_SOURCE}/autotuner/param.py#L498",
)
def load_result(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """AutotuneResult.load_from_disk: a miss unless something attests every file of the result.

    Raises EntryRefusedError in strict mode.
    """

    def load(path: Any, *rest: Any, **named: Any) -> Any:
        return wrapped(path, *rest, **named) if _is_attested(str(path)) else None

    return load(*args, **kwargs)


@verifier(
    f"{_BINARIES}.load(cls, key, compile_format)",
    why="TileLang links a device binary from its cache into a kernel if a text beside it states the same digest.",
    issue=f"{_SOURCE}/cache/binary_cache.py#L125",
)
def load_binary(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """BinaryCache.load: a miss unless something attests the binary. Raises EntryRefusedError in strict mode."""

    def load(key: str, compile_format: str) -> Any:
        path = instance.get_path(key, compile_format)
        if _settle(path):
            return wrapped(key, compile_format)
        # TileLang publishes no other binary as long as there is a directory.
        _remove(os.path.dirname(path))
        return None

    return load(*args, **kwargs)


@verifier(f"{_CACHE}._write_manifest(self, cache_path)", why=_RECORD, issue=f"{_SOURCE}/cache/kernel_cache.py#L790")
def save_kernel(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """_write_manifest, the last to write a kernel before it is published: attests all of it."""

    def write(cache_path: str) -> None:
        wrapped(cache_path)
        _attest_all(cache_path)

    write(*args, **kwargs)


@verifier(
    f"{_RESULT}._save_kernel_to_disk(self, cache_path, kernel, verbose=)",
    why=_RECORD,
    issue=f"{_SOURCE}/autotuner/param.py#L214",
)
def save_result(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """AutotuneResult._save_kernel_to_disk, the last to write a result before it is published: attests all of it."""

    def save(cache_path: Any, *rest: Any, **named: Any) -> None:
        wrapped(cache_path, *rest, **named)
        _attest_all(str(cache_path))

    save(*args, **kwargs)


@verifier(
    f"{_BINARIES}.save(cls, key, compile_format, data)", why=_RECORD, issue=f"{_SOURCE}/cache/binary_cache.py#L150"
)
def save_binary(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """BinaryCache.save: attests the binary before it is published."""

    def save(key: str, compile_format: str, data: bytes) -> None:
        _attest(instance.get_path(key, compile_format), hashlib.sha256(data).digest())
        wrapped(key, compile_format, data)

    save(*args, **kwargs)


@verifier(
    "tilelang.jit.adapter.cutedsl.adapter:CuTeDSLKernelAdapter._save_cubin_to_cache_if_needed(self)",
    why="TileLang adds a cubin to a kernel that it has published, without a digest.",
    issue=f"{_SOURCE}/jit/adapter/cutedsl/adapter.py#L342",
)
def save_cubin(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """_save_cubin_to_cache_if_needed, at the first launch: attests the cubin before it is copied."""
    directory = getattr(instance, "_cache_path", None)
    if directory is not None and not getattr(instance, "_cubin_saved_to_cache", False):
        with suppress(FileNotFoundError):  # then TileLang copies none
            made_at = f"{os.path.splitext(instance.libpath)[0]}.cubin"
            _attest(os.path.join(directory, "kernel.cubin"), _digest(made_at))
    wrapped(*args, **kwargs)


def _is_exposed(path: str) -> bool:
    """Whether others can write there, or replace it. Reports it, and raises EntryRefusedError for it in strict mode."""
    objection = ownership.why_not_private(path)
    if objection is not None:
        # Only now, since it may have to ask a server.
        objection = ownership.why_not_private(path, group=ownership.own_group())
    if objection is not None and os.path.lexists(path):
        message = f"others can write to TileLang's cache {path}"
        remedy = "Each process compiles its kernels anew. Help: take that permission from them, with chmod -R go-w"
        events.report(Reason.EXPOSED_DIRECTORY, message, why=objection, cause="TileLang", remedy=remedy)
    return objection is not None


def _attest_all(directory: str) -> None:
    """Attest the files in the directory, in which TileLang stages them. Raises OSError."""
    for name in os.listdir(directory):
        path = os.path.join(directory, name)
        if not _is_exposed(path):
            _attest(path, _digest(path))


def _attest(path: str, digest: bytes) -> None:
    gate.attest_file(_file(path, digest), digest=digest)


def _digest(path: str) -> bytes:
    return opening.digest_regular(path, opening.check_regular, flags=os.O_NOFOLLOW)


def _file(path: str, digest: bytes) -> CodeFile:
    """A file of a kernel where it is staged, in ``.staging/<key>_<pid>_<nonce>``, or published, in ``kernels/<key>``.

    Its name has the digest. Of several processes that compile a kernel at once, one publishes it, while all attest
    their own before: so no record replaces another's.
    """
    directory, name = os.path.split(path)
    key = os.path.basename(directory).partition("_")[0]
    return CodeFile(path, os.path.dirname(os.path.dirname(directory)), name=f"{key}/{name}/{digest.hex()}")


def _is_attested(directory: str) -> bool:
    """Whether something attests all that lies there; else it is removed, as TileLang removes what is damaged.

    What nothing attests is quarantined first. Raises EntryRefusedError for it in strict mode.
    """
    # Python's copies of the modules that TileLang imports from there: they are taken for current by a time.
    _remove(os.path.join(directory, "__pycache__"))
    with suppress(OSError):  # there is no such directory, or nobody can list it
        # TileLang's temporary files begin with a dot.
        names = [name for name in os.listdir(directory) if not name.startswith(".")]
        settled = [_settle(os.path.join(directory, name)) for name in names]
        if all(settled):
            return True
        _remove(directory)
    return False


def _remove(directory: str) -> None:
    """Remove the directory with all its contents; what cannot be removed stays. Links below the one above are none."""
    with suppress(OSError), folders.open_subdirectory(os.path.dirname(directory)) as parent:
        parent.remove(os.path.basename(directory))


def _settle(path: str) -> bool:
    """Whether something attests the file, and nobody else can replace it; what nothing attests is quarantined."""
    digest = b""
    try:
        with suppress(opening.UnusableEntry):  # which is then refused for what it is
            digest = _digest(path)
        return gate.accept_or_quarantine(_file(path, digest)) and not _is_exposed(path)
    except Unsettled as error:
        refusal = getattr(error, "refusal", None) or Refusal(Reason.UNREADABLE, error.evidence)
        report.refuse(refusal, _file(path, digest).kind, path, "It is left there, and compiled anew.")
    except OSError:
        return False  # another process has moved it away, or nobody can read it
    return False
