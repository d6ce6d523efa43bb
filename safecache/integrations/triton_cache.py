"""triton.runtime.cache: Triton's local cache manager with our files, and its remote one."""

from __future__ import annotations

import locale
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from safecache import compiles
from safecache.built_code import triton_files, triton_remote
from safecache.entries import searches
from safecache.entries.searches import Search
from safecache.patching.hook import verifier
from safecache.places.refs import locate
from safecache.ports import Compiling, KernelRequest, Saved, plugs, tell
from safecache.reporting.kinds import Kind, Reason

__all__ = [
    "get_file",
    "get_group",
    "init",
    "init_remote",
    "materialize",
    "put",
    "put_group",
    "remote_get_group",
    "remote_put",
]

# The hook that upstream supports, and why it does not do.
_INSTEAD_MANAGER_CLASS = (
    "triton.knobs.cache.manager_class: a manager made directly, one that a user sets, and a reset or the end of a "
    "scope of the knob get round it"
)

# The manager's attribute for its purpose: directories for dumps and overrides are for people.
_ROLE = "_safecache_role"


@verifier(
    "triton.runtime.cache:FileCacheManager.__init__(self, key, override=, dump=)",
    why="Triton creates the cache directory before every lookup, so a read-only or full directory ends the compile.",
    issue="https://github.com/triton-lang/triton/blob/v3.9.0/python/triton/runtime/cache.py#L55",
    instead=_INSTEAD_MANAGER_CLASS,
)
def init(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """FileCacheManager.__init__: a directory that cannot be made counts as empty; put() reports why."""

    def make_manager(key: str, override: bool = False, dump: bool = False) -> None:
        setattr(instance, _ROLE, "dump" if dump else "override" if override else "cache")
        try:
            wrapped(key, override, dump)
        except OSError:
            if not getattr(instance, "cache_dir", None):
                raise
        _wrap_own_put(instance)

    make_manager(*args, **kwargs)


@verifier(
    "triton.runtime.cache:FileCacheManager.put(self, data, filename, binary=)",
    why="Any OSError while Triton writes a cache file ends the compile, although the kernel itself was made.",
    issue="https://github.com/triton-lang/triton/issues/11512",
    instead=_INSTEAD_MANAGER_CLASS,
)
def put(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> str:
    """FileCacheManager.put: returns a path where the caller can read the file, and nobody else can replace it."""

    def put_file(data: str | bytes, filename: str, *rest: Any, **named: Any) -> str:
        role = _find_role(instance)
        if role == "override" or not instance.cache_dir:
            path: str = wrapped(data, filename, *rest, **named)
            return path
        keep = triton_files.dump if role == "dump" else triton_files.put
        return keep(instance.cache_dir, filename, _encode_data(data))

    return put_file(*args, **kwargs)


def _encode_data(data: Any) -> bytes:
    # Triton reads text in the locale's encoding; characters outside it occur only in comments of an IR.
    return data if isinstance(data, bytes) else str(data).encode(locale.getpreferredencoding(False), "backslashreplace")


@verifier(
    "triton.runtime.cache:FileCacheManager.put_group(self, filename, group)",
    why="Triton's group list binds file paths but no digests, so concurrent writers pair one's cubin with another's "
    "metadata.",
    issue="https://github.com/triton-lang/triton/pull/11319",
    instead=_INSTEAD_MANAGER_CLASS,
)
def put_group(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> str:
    """FileCacheManager.put_group: the list names the files in the cache, for other processes, not private copies."""

    def put(filename: str, group: dict[str, str]) -> str:
        if _is_cache(instance):
            directory = instance.cache_dir
            group = {name: os.path.join(directory, name) for name in triton_files.find_attested(directory, group)}
        path: str = wrapped(filename, group)
        if _is_cache(instance):
            tell(Saved(locate(Kind.KERNEL, instance.cache_dir, os.path.dirname(instance.cache_dir))))
        return path

    return put(*args, **kwargs)


@verifier(
    "triton.runtime.cache:FileCacheManager.get_file(self, filename)",
    why="Triton returns whatever file exists under that name, and its caller loads it with dlopen.",
    issue="https://github.com/pytorch/pytorch/pull/195610",
    instead=_INSTEAD_MANAGER_CLASS,
)
def get_file(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> str | None:
    """FileCacheManager.get_file: None for an unattested file."""

    def get(filename: str) -> str | None:
        _wrap_own_put(instance)
        path: str | None
        path = triton_files.get_file(instance.cache_dir, filename) if _is_cache(instance) else wrapped(filename)
        return path

    return get(*args, **kwargs)


@verifier(
    "triton.runtime.cache:FileCacheManager.get_group(self, filename)",
    why="Triton up to 3.7 takes a group with missing files as a cache hit, then dies of the missing cubin.",
    issue="https://github.com/triton-lang/triton/pull/10411",
    instead=_INSTEAD_MANAGER_CLASS,
)
def get_group(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> dict[str, str] | None:
    """FileCacheManager.get_group: None if any file of the group, or its list, is unattested or missing.

    Triton up to 3.7 accepts a group with missing files, and dies of a missing cubin at the launch.
    """

    def get(filename: str) -> dict[str, str] | None:
        _wrap_own_put(instance)
        if _is_cache(instance):
            with _track_kernel(instance.cache_dir, filename) as search:
                found = triton_files.get_group(instance.cache_dir, filename)
                if found is None and not compiles.current.is_told:
                    found = _await_group(search, instance.cache_dir, filename)
                _end_search(search, filename, found)
            return plugs.compiler.make(_take_request(filename), instance, instance.cache_dir, found)
        group: dict[str, str] | None = wrapped(filename)
        return group

    return get(*args, **kwargs)


@verifier(
    "triton.runtime.cache:RemoteCacheManager.__init__(self, key, override=, dump=)",
    why="Triton's remote backend stores and returns bare bytes, without checksum or signature.",
    issue="https://github.com/triton-lang/triton/blob/v3.9.0/python/triton/runtime/cache.py#L177",
    instead=_INSTEAD_MANAGER_CLASS,
)
def init_remote(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """Triton's RemoteCacheManager.__init__: what its backend keeps travels with records."""
    wrapped(*args, **kwargs)
    instance._backend = triton_remote.Backend(instance._backend, instance._file_cache_manager.cache_dir)


@verifier(
    "triton.runtime.cache:RemoteCacheManager.put(self, data, filename, binary=)",
    why="Triton passes its own new files and files from the remote through the same _materialize, which cannot tell "
    "them apart.",
    issue="https://github.com/triton-lang/triton/blob/v3.9.0/python/triton/runtime/cache.py#L211",
    instead=_INSTEAD_MANAGER_CLASS,
)
def remote_put(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """RemoteCacheManager.put: lets materialize() know that the file is sent, not received."""
    with compiles.override_scope(is_sending=True):
        return wrapped(*args, **kwargs)


@verifier(
    "triton.runtime.cache:RemoteCacheManager._materialize(self, filename, data)",
    why="Triton writes whatever bytes the remote backend returns into the local cache, and loads them as a kernel.",
    issue="https://github.com/triton-lang/triton/blob/v3.9.0/python/triton/runtime/cache.py#L187",
    instead=_INSTEAD_MANAGER_CLASS,
)
def materialize(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> str | None:
    """RemoteCacheManager._materialize: None for a file from the remote cache that nothing attests."""

    def keep(filename: str, data: bytes) -> str | None:
        path: str | None
        directory, sends = instance._file_cache_manager.cache_dir, compiles.current.is_sending
        path = wrapped(filename, data) if sends else triton_remote.accept(instance._backend, directory, filename, data)
        return path

    return keep(*args, **kwargs)


@verifier(
    "triton.runtime.cache:RemoteCacheManager.get_group(self, filename)",
    why="Triton up to 3.7 accepts a remote group with missing files as a cache hit, and fails when it loads the "
    "kernel.",
    issue="https://github.com/triton-lang/triton/pull/10411",
    instead=_INSTEAD_MANAGER_CLASS,
)
def remote_get_group(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> dict[str, str] | None:
    """RemoteCacheManager.get_group: None if any file of the group is unattested or missing."""

    def get(filename: str) -> dict[str, str] | None:
        directory = instance._file_cache_manager.cache_dir
        with _track_kernel(directory, filename) as search:
            group: dict[str, str] | None = wrapped(filename)
            found = group if group and all(group.values()) else None
            _end_search(search, filename, found)
        return plugs.compiler.make(_take_request(filename), instance, directory, found)

    return get(*args, **kwargs)


def _await_group(search: Search, directory: str, filename: str) -> dict[str, str] | None:
    """Return the group that this process has waited for another to compile; None where this one has to compile it."""
    flight = plugs.single_flight.wait_or_lead(search.ref, search.find_compile_seconds)
    if flight is None:
        return None
    search.exclude_wait(flight.waited)
    found = triton_files.get_group(directory, filename)
    if found is not None:
        flight.mark_found()
    return found


def _track_kernel(directory: str, filename: str) -> AbstractContextManager[Search]:
    ref = locate(Kind.KERNEL, directory, os.path.dirname(directory))
    return searches.track_lookup(ref, lambda: _find_name(filename))


def _find_request(filename: str) -> KernelRequest | None:
    """Return what this thread is about to compile, if ``filename`` is the name of its metadata."""
    request: KernelRequest | None = compiles.current.kernel
    return request if request is not None and filename == request.metadata else None


def _take_request(filename: str) -> KernelRequest | None:
    request, compiles.current.kernel = _find_request(filename), None
    return request


def _find_name(filename: str) -> str:
    """The name of the kernel with this metadata file; with its module if triton.compile() asks."""
    request = _find_request(filename)
    return compiles.name_kernel(request.source) if request is not None else filename.removesuffix(".json")


def _end_search(search: Search, filename: str, found: dict[str, str] | None) -> None:
    """Triton compiles unless the group holds the file it asks for, and always with TRITON_ALWAYS_COMPILE."""
    if compiles.current.is_told:
        return search.discard()
    request = _find_request(filename)
    if found is None and request is not None:
        tell(Compiling(search.ref, request, lambda: _find_name(filename)))
    if sys.modules["triton"].knobs.compilation.always_compile:
        search.end_as_bypass(Reason.DISABLED, "TRITON_ALWAYS_COMPILE")
    elif found is not None and filename in found:
        search.end_as_hit()
    else:
        search.end_as_miss()


def _is_cache(manager: Any) -> bool:
    return _find_role(manager) == "cache" and bool(manager.cache_dir)


def _find_role(manager: Any) -> str:
    """Return "cache", "override" or "dump": by the manager's directory, if a user's __init__ does not call ours."""
    known: str | None = getattr(manager, _ROLE, None)
    if known is not None:
        return known
    knobs, root = sys.modules["triton"].knobs.cache, os.path.dirname(manager.cache_dir or "")
    roles = {knobs.override_dir: "override", knobs.dump_dir: "dump", knobs.dir: "cache"}
    return roles.get(root, "cache")


def _wrap_own_put(manager: Any) -> None:
    """Have what a user's manager writes with a put() of its own attested: we are called before it is, by a lookup."""
    if "put" in vars(manager) or not _is_cache(manager) or not _has_own_put(type(manager)):
        return
    write = manager.put

    def put_file(data: str | bytes, filename: str, *rest: Any, **named: Any) -> str:
        def write_file() -> str:
            path: str = write(data, filename, *rest, **named)
            return path

        return triton_files.attest(manager.cache_dir, filename, _encode_data(data), write_file)

    manager.put = put_file


def _has_own_put(kind: type) -> bool:
    return next(base for base in kind.__mro__ if "put" in vars(base)).__module__ != "triton.runtime.cache"
