"""TileLang: the kernels, results of tuning and device binaries in its cache."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from safecache.built_code import kept_code
from safecache.fs import folders, opening, ownership, private_directory
from safecache.patching.hook import verifier
from safecache.places.layout import CodeFile
from safecache.reporting import events, report
from safecache.reporting.kinds import Count, Reason
from safecache.reporting.report import Refusal
from safecache.session import Part, inherit
from safecache.store import gate, manifests
from safecache.tiers.directory_faults import Immovable, Unreadable

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
_CUBIN = "kernel.cubin"
_DIRECTORY = "TileLang loads libraries from its cache, without asking who else can write there."
_RECORD = (
    "TileLang publishes what it compiles with plain digests at most, which whoever replaces a file can replace too."
)
# The directories that others could not write to: each kernel's own, with all above it, is checked when it is used.
_private: Part[set[str]] = Part(set, inherit)


@verifier(f"{_CACHE}._get_namespace_root()", why=_DIRECTORY, issue=f"{_SOURCE}/cache/kernel_cache.py#L208")
@verifier(f"{_BINARIES}._get_namespace_root(cls)", why=_DIRECTORY, issue=f"{_SOURCE}/cache/binary_cache.py#L56")
def namespace_root(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> str:
    """_get_namespace_root, which all paths come from, returns a directory of this process if others can write there.

    safecache reports that once, and raises EntryRefusedError in strict mode.
    """
    directory = str(wrapped(*args, **kwargs))
    if directory in _private.now:
        return directory
    os.makedirs(directory, exist_ok=True)
    if not _is_exposed(directory):
        _private.now.add(directory)
        return directory
    return os.path.join(private_directory.get_process_directory(), "tilelang", os.path.basename(directory))


@verifier(
    f"{_CACHE}._load_kernel_from_disk(self, key, backend_context, out_idx=, pass_configs=, compile_flags=, func=, "
    "verbose=)",
    why="TileLang loads whatever library lies in its cache if a manifest beside it states the same digest.",
    issue=f"{_SOURCE}/cache/kernel_cache.py#L641",
)
def load_kernel(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """_load_kernel_from_disk misses unless a record attests all files of the kernel.

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
    """AutotuneResult.load_from_disk misses unless a record attests all files of the result.

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
    """BinaryCache.load misses unless a record attests the binary. Raises EntryRefusedError in strict mode."""

    def load(key: str, compile_format: str) -> Any:
        directory, name = os.path.split(instance.get_path(key, compile_format))
        if _is_attested(directory, [name]):
            return wrapped(key, compile_format)
        return None

    return load(*args, **kwargs)


@verifier(f"{_CACHE}._write_manifest(self, cache_path)", why=_RECORD, issue=f"{_SOURCE}/cache/kernel_cache.py#L790")
def save_kernel(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """_write_manifest, which writes the last file of a kernel before TileLang publishes it, attests all of them."""

    def write(cache_path: str) -> None:
        wrapped(cache_path)
        _attest_staged(cache_path)

    write(*args, **kwargs)


@verifier(
    f"{_RESULT}._save_kernel_to_disk(self, cache_path, kernel, verbose=)",
    why=_RECORD,
    issue=f"{_SOURCE}/autotuner/param.py#L214",
)
def save_result(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """AutotuneResult._save_kernel_to_disk, which writes the last file of a result, attests all of them."""

    def save(cache_path: Any, *rest: Any, **named: Any) -> None:
        wrapped(cache_path, *rest, **named)
        _attest_staged(str(cache_path))

    save(*args, **kwargs)


@verifier(
    f"{_BINARIES}.save(cls, key, compile_format, data)", why=_RECORD, issue=f"{_SOURCE}/cache/binary_cache.py#L150"
)
def save_binary(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """BinaryCache.save attests the binary before TileLang publishes it."""

    def save(key: str, compile_format: str, data: bytes) -> None:
        directory, name = os.path.split(instance.get_path(key, compile_format))
        _attest_files(directory, {name: hashlib.sha256(data).digest()})
        wrapped(key, compile_format, data)

    save(*args, **kwargs)


@verifier(
    "tilelang.jit.adapter.cutedsl.adapter:CuTeDSLKernelAdapter._save_cubin_to_cache_if_needed(self)",
    why="TileLang adds a cubin to a kernel that it has published, without a digest.",
    issue=f"{_SOURCE}/jit/adapter/cutedsl/adapter.py#L342",
)
def save_cubin(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """_save_cubin_to_cache_if_needed attests the cubin with its kernel, before TileLang copies it there."""
    directory = getattr(instance, "_cache_path", None)
    if directory is not None and not getattr(instance, "_cubin_saved_to_cache", False):
        made_at = f"{os.path.splitext(instance.libpath)[0]}.cubin"
        with suppress(OSError, opening.UnusableEntry):  # then TileLang copies none, or makes the kernel anew next time
            names = [name for name in _list_names(directory) if name != _CUBIN]
            digests = {name: gate.digest_file(os.path.join(directory, name)) for name in names}
            file, digest = kept_code.name_group(directory, digests)
            # What has changed since the kernel was verified must not get a record.
            if gate.judge_content(file, digest, [*manifests.read_unverified_records(file)], is_private=False) is None:
                _attest_files(directory, digests | {_CUBIN: gate.digest_file(made_at)})
    wrapped(*args, **kwargs)


def _list_names(directory: str) -> list[str]:
    # TileLang's temporary files begin with a dot.
    return [name for name in os.listdir(directory) if not name.startswith(".")]


def _is_exposed(path: str) -> bool:
    """Tell whether others can write there, or replace it; report that. Raises EntryRefusedError in strict mode."""
    objection = ownership.find_outside_exposure(path)
    if objection is not None and os.path.lexists(path):
        message = f"others can write to TileLang's cache {path}"
        remedy = "Each process recompiles its kernels. Help: take that permission from them, with chmod -R go-w"
        events.report(Reason.EXPOSED_DIRECTORY, message, why=objection, cause="TileLang", remedy=remedy)
    return objection is not None


def _has_exposed(directory: str, found: Mapping[str, os.stat_result]) -> bool:
    """Tell and report whether others can write to the directory or a file that was ``found`` in it, by its path."""
    return _is_exposed(directory) or any(
        not ownership.is_own(status) and _is_exposed(path) for path, status in found.items()
    )


def _attest_staged(directory: str) -> None:
    """Attest all files in the directory, in which TileLang stages them, by one record. Raises OSError."""
    found = {item.path: item.status for item in folders.list_items(directory)}
    if not _has_exposed(directory, found):
        _attest_files(directory, {os.path.basename(path): gate.digest_file(path) for path in found})


def _attest_files(directory: str, digests: Mapping[str, bytes]) -> None:
    file, digest = kept_code.name_group(directory, digests)
    gate.attest_file(file, digest=digest)


def _is_attested(directory: str, names: Sequence[str] = ()) -> bool:
    """Tell whether a record attests these files, or all that lie there; else remove them, as TileLang does itself.

    What nothing attests is quarantined first. Raises EntryRefusedError for it in strict mode.
    """
    with suppress(OSError):  # there is no such directory, or nobody can list it
        names = names or _list_names(directory)
        if "__pycache__" in names:
            # Python's copies of the modules that TileLang imports from there: they are taken for current by a time.
            kept_code.discard(os.path.join(directory, "__pycache__"))
            names = _list_names(directory)
        if _settle_files(directory, names):
            return True
        # TileLang publishes nothing as long as there is a directory.
        kept_code.discard(directory)
    return False


def _settle_files(directory: str, names: Sequence[str]) -> bool:
    """Tell whether one record attests the files, and nobody else can replace one; else quarantine them."""
    paths = {name: os.path.join(directory, name) for name in names}
    try:
        found = {path: os.lstat(path) for path in paths.values()}
        file, digest = kept_code.name_group(directory, {name: gate.digest_file(path) for name, path in paths.items()})
        refusal = gate.judge_content(file, digest, [*manifests.read_unverified_records(file)])
    except opening.UnusableEntry as unusable:
        refusal = unusable.refusal
    except Unreadable as error:
        refusal = Refusal(Reason.UNREADABLE, error.evidence)
    except OSError:
        return False  # another process has moved it away, or nobody can read it
    if refusal is None:
        events.count(Count.CODE_VERIFIED)
        return not _has_exposed(directory, found)
    accepted = []
    for path, status in found.items():
        file = CodeFile(path, os.path.dirname(os.path.dirname(directory)))
        try:
            accepted.append(gate.accept_or_quarantine(file, partial(refusal._replace, found=status)))
        except Immovable as error:
            report.refuse(error.refusal or refusal, file.kind, path, "Recompiling it; the file stays.")
            accepted.append(False)
    return all(accepted) and not _has_exposed(directory, found)
