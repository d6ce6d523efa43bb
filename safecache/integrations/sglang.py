"""SGLang: the table of its artifacts, which vLLM has too, the libraries that it builds, and its CuTe DSL objects."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from safecache.built_code import exec_directory, extension_builds, kept_code, lock_guards, sources
from safecache.fs import opening, ownership
from safecache.integrations import cute_dsl, vllm
from safecache.patching.hook import BUILTIN_OPEN, verifier
from safecache.reporting import events
from safecache.reporting.kinds import Kind, Reason
from safecache.settings import config
from safecache.store import attestations, entry_files, gate
from safecache.tiers import directory_faults
from safecache.tiers.directory_faults import Immovable

__all__ = [
    "build_directory",
    "build_library",
    "digest_source",
    "export_object",
    "find_library",
    "init_objects",
    "load_library",
    "load_object",
    "lock_build",
    "lock_object",
    "open_file",
    "publish_library",
    "read_headers",
]

_SOURCE = "https://github.com/sgl-project/sglang/blob/v0.5.23/python/sglang/kernels/jit"
_COMPILE = "sglang.kernels.jit.utils.compile"
_OBJECTS = "sglang.kernels.jit.cute_aot_cache:JITPersistentCache"
_AOT_VARIABLE = "SGLANG_CUTE_AOT_CACHE_DIR"
_VARIABLE = "SGLANG_JIT_CACHE_DIR"


@verifier(
    "sglang.srt.compilation.backend:open",
    BUILTIN_OPEN,
    why="SGLang trusts whatever table of artifacts it finds, and a full disk while it writes one ends the engine.",
    issue="https://github.com/vllm-project/vllm/pull/38920",
)
def open_file(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """The backend's open verifies the table of artifacts, and lets no full disk end the engine."""
    return vllm.open_file(wrapped, instance, args, kwargs)


@verifier(
    f"{_COMPILE}.cache:build_key_dir(*module_name, *build_key)",
    why="SGLang builds in its cache directory without asking who else can write there, and ends if nobody can.",
    issue=f"{_SOURCE}/utils/compile/cache.py#L322",
)
def build_directory(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Path:
    """build_key_dir returns a private directory if SGLang cannot build in its own and no library there is attested.

    Raises CacheWriteError in strict mode in place of a private build.
    """

    def choose_directory(*, module_name: str, build_key: str) -> Path:
        directory: Path = wrapped(module_name=module_name, build_key=build_key)
        why = _find_objection(str(directory))
        find = sys.modules[f"{_COMPILE}.cache"].find_prebuilt
        if why is None or find(scope=directory, module_name=module_name) is not None:
            return directory
        private = os.path.join(extension_builds.make_private_directory(directory.parts[-3]), *directory.parts[-2:])
        error = PermissionError(why)
        extension_builds.report_private_build(module_name, str(directory), private, why, _VARIABLE, error)
        return Path(private)

    return choose_directory(*args, **kwargs)


def _find_objection(directory: str) -> str | None:
    """Say why no library can be built in ``directory``; None if one can."""
    why = directory_faults.find_objection(directory)
    if why is None and not config.current().shared:
        exposed = ownership.find_outside_exposure(directory)
        why = exposed and f"others can write there: {exposed}"
    return why


@verifier(
    f"{_COMPILE}.cache:find_prebuilt(*scope, *module_name)",
    why="SGLang takes whatever library lies beside a list of dependencies whose hash is the directory's name.",
    issue=f"{_SOURCE}/utils/compile/cache.py#L369",
)
def find_library(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Path | None:
    """find_prebuilt quarantines a library that nothing attests, and looks for the next one, or for a kept copy.

    Links in place of its directories are quarantined too. Raises EntryRefusedError for one in strict mode.
    """

    def find(*, scope: Path, module_name: str) -> Path | None:
        for leaf in scope.glob("deps-*"):
            if leaf.is_symlink():
                with suppress(Immovable):  # what lies there is verified, as everywhere
                    sources.settle_side_file(os.path.abspath(leaf), os.path.abspath(scope))
        while True:
            found: Path | None = wrapped(scope=scope, module_name=module_name)
            if found is None:
                is_usable = _find_objection(str(scope)) is None
                if is_usable and kept_code.fetch_library(os.path.abspath(scope), f"{module_name}.so"):
                    continue
                return None
            file = kept_code.name_library(found)
            try:
                if sources.settle_side_file(file.path, file.root, name=file.name):
                    return found
            except Immovable as error:
                if _find_objection(file.root) is None:  # else it is built in a private directory, which is reported
                    message, remedy = f"cannot replace {file.path}", "Every start rebuilds it. Help: remove it"
                    events.report(
                        Reason.UNUSABLE_DIRECTORY,
                        message,
                        why=error.evidence,
                        cause=file.path,
                        remedy=remedy,
                        error=error,
                    )
                return None

    return find(*args, **kwargs)


_LIST = "SGLang reads the list of dependencies, and all files that it names, even a FIFO or a file without end."


@verifier(f"{_COMPILE}.cache:_read_deps(leaf)", why=_LIST, issue=f"{_SOURCE}/utils/compile/cache.py#L335")
def read_headers(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """_read_deps: None for a list that is no file of a sane size."""

    def read(leaf: Path) -> Any:
        return None if sources.read_unverified_text(str(leaf / kept_code.HEADERS)) is None else wrapped(leaf)

    return read(*args, **kwargs)


@verifier(f"{_COMPILE}.cache:_file_digest(path)", why=_LIST, issue=f"{_SOURCE}/utils/compile/cache.py#L159")
def digest_source(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> str | None:
    """_file_digest: None for what is no file of a sane size."""

    def digest(path: Path) -> str | None:
        try:
            opening.check_up_to(entry_files.max_entry_size(Kind.SOURCE))(os.stat(path))
        except (OSError, opening.UnusableEntry):
            return None
        found: str | None = wrapped(path)
        return found

    return digest(*args, **kwargs)


@verifier(
    f"{_COMPILE}.loader:_build_lock(scope)",
    why="SGLang waits for ever, in silence, for a lock that a stopped process holds, and ends on one that is no file.",
    issue=f"{_SOURCE}/utils/compile/loader.py#L244",
)
@contextmanager
def lock_build(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Iterator[None]:
    """_build_lock gives up a lock whose holder does not work: what is built twice is still published whole.

    Reports that. Raises CacheWriteError for it in strict mode.
    """
    from filelock import FileLock

    scope = Path(*args, **kwargs)
    path = str(scope / ".lock")
    lock = FileLock(path, thread_local=False)
    try:
        scope.mkdir(parents=True, exist_ok=True)
        extension_builds.check_file(path)
        lock_guards.wait(path, -1.0, lambda seconds: lock.acquire(timeout=seconds))
    except OSError as error:
        message, remedy = f"cannot lock {path}", "Building without it; other processes may build the same"
        events.report(Reason.LOCK_HELD, message, why=f"{error}", cause=path, remedy=remedy, error=error)
    try:
        yield
    finally:
        lock.release()


@verifier(
    f"{_COMPILE}.ninja:build(*spec, *build_dir, *build_file)",
    why="SGLang keeps no digest of the library that it has just built.",
    issue=f"{_SOURCE}/utils/compile/ninja.py#L138",
)
def build_library(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Path:
    """ninja.build, in a new directory, has the library that it builds attested within this process.

    Raises MissError where SAFECACHE_STRICT=misses=1 forbids a build.
    """
    kept_code.forbid_miss(f"the library {kwargs['spec'].module_name}")
    library: Path = wrapped(*args, **kwargs)
    path = kept_code.name_library(library).path
    attestations.attest_in_process(path, digest=gate.digest_file(path))
    return library


@verifier(
    f"{_COMPILE}.cache:_publish(*staging, *leaf)",
    why="SGLang publishes a library without a digest, and keeps what lies in its place, even if that is of no use.",
    issue=f"{_SOURCE}/utils/compile/cache.py#L528",
)
def publish_library(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Path:
    """_publish, under SGLang's lock, attests the library, removes what is left of a refused one, and keeps a copy."""

    def publish(*, staging: Path, leaf: Path) -> Path:
        (built,) = staging.glob("*.so")
        file, digest = kept_code.name_library(leaf / built.name), gate.digest_file(str(built))
        if not gate.is_attested(file):
            kept_code.discard(str(leaf))
        if not os.path.lexists(leaf):
            gate.attest_file(file, digest=digest)
        published: Path = wrapped(staging=staging, leaf=leaf)
        kept_code.keep_library(file.path, digest)
        return published

    return publish(*args, **kwargs)


@verifier(
    f"{_COMPILE}.loader:_load(library)",
    why="SGLang has TVM FFI dlopen a library from its cache, and another process can replace it after any check.",
    issue=f"{_SOURCE}/utils/compile/loader.py#L270",
)
def load_library(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """_load verifies the library. Raises EntryRefusedError, in default mode too; SGLang then builds another."""

    def load(library: Path) -> Any:
        return wrapped(Path(exec_directory.find_load_path(kept_code.name_library(library))))

    return load(*args, **kwargs)


@verifier(
    f"{_OBJECTS}.__init__(self, cache_path, *enable_tvm_ffi=)",
    why="SGLang takes CuTe DSL objects from its cache directory without asking who else can write there.",
    issue=f"{_SOURCE}/cute_aot_cache.py#L240",
)
def init_objects(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """JITPersistentCache.__init__ takes a directory of this process if others can write to its own, or nobody can."""

    def init(cache_path: Any, **named: Any) -> None:
        def choose_directory() -> Path:
            wanted = Path(cache_path() if callable(cache_path) else cache_path)
            try:
                if cute_dsl.find_reachable_path(wanted) == wanted:
                    wanted.mkdir(parents=True, exist_ok=True)
                    return wanted
            except OSError as error:
                cute_dsl.fail_write(str(wanted), error, _AOT_VARIABLE)
            # The one above is part of the key by which a copy is kept.
            return Path(sources.replace_cache(str(wanted.parent))) / wanted.name

        wrapped(choose_directory, **named)

    init(*args, **kwargs)


@verifier(
    f"{_OBJECTS}._try_load_from_storage(self, key)",
    why="SGLang loads whatever object lies under the key into the process, and notices only one that fails to load.",
    issue=f"{_SOURCE}/cute_aot_cache.py#L276",
)
def load_object(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> bool:
    """JITPersistentCache._try_load_from_storage quarantines an unattested object, and copies a kept one there."""

    def load(key: Any) -> bool:
        path = _find_object(instance, key)
        try:
            return cute_dsl.settle_object(path, _make_key(path)) and bool(wrapped(key))
        except Immovable:
            return False
        except OSError as error:  # of the lock
            cute_dsl.fail_write(path, error, _AOT_VARIABLE)
            return False

    return load(*args, **kwargs)


@verifier(
    "sglang.kernels.jit.cute_aot_cache:FileLock.__enter__(self)",
    why="SGLang ends after 15 s if a stopped process holds its lock, and waits for ever if that is a FIFO.",
    issue=f"{_SOURCE}/cute_aot_cache.py#L171",
)
def lock_object(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """FileLock.__enter__, which readers do without: what is attested is whole. Raises OSError if it cannot be taken."""
    if not instance.exclusive:
        instance._fd = None  # as it is after __exit__
        return instance
    path = str(instance.lock_path)
    extension_builds.check_file(path)
    try:
        return wrapped(*args, **kwargs)
    except RuntimeError as error:
        raise TimeoutError(errno.ETIMEDOUT, f"{error}", path) from error


@verifier(
    f"{_OBJECTS}._try_export_to_storage(self, key, fn)",
    why="SGLang publishes a compiled object without a digest, so no later process can verify it.",
    issue=f"{_SOURCE}/cute_aot_cache.py#L337",
)
def export_object(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """JITPersistentCache._try_export_to_storage attests the object that it writes, or reports that it cannot."""

    def export(key: Any, fn: Any) -> None:
        path = _find_object(instance, key)
        before = cute_dsl.identify_file(path)
        try:
            wrapped(key, fn)
            cute_dsl.attest_if_new(path, before, _make_key(path))
        except OSError as error:
            cute_dsl.fail_write(path, error, _AOT_VARIABLE)

    export(*args, **kwargs)


def _find_object(cache: Any, key: Any) -> str:
    return os.path.abspath(os.path.join(cache.cache_path, f"{cache._key_to_hash(key)}.o"))


def _make_key(path: str) -> str:
    """Join SGLang's names: the hash of its sources and versions, that of the cache, and the hash of the arguments."""
    return "/".join(path.split(os.sep)[-3:])
