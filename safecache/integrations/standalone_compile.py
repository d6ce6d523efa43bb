"""Artifacts of standalone_compile, and torch's memoizing caches."""

from __future__ import annotations

import dataclasses
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import wrapt

from safecache import compiles, load_errors
from safecache.built_code import vllm_files
from safecache.entries import artifacts, loading, saving, searches
from safecache.errors import RefusedArtifactError
from safecache.patching.hook import PICKLE_MODULE, hook, verifier
from safecache.places import layout
from safecache.places.refs import Ref
from safecache.reporting import events, report
from safecache.reporting.kinds import Kind, Reason
from safecache.reporting.report import Refusal
from safecache.signing import seal

__all__ = ["get_cached", "init", "insert_cached", "load", "save", "verifying_pickle"]

_ARTIFACT_REMEDY = "Copy it from where it was made, or compile again."
# Where torch reads an artifact.
_READERS = ("_appending_byte_serializer.py", "standalone_compile.py")


@verifier(
    (
        "torch._inductor.standalone_compile:CompiledArtifact.load",
        "torch._inductor.standalone_compile:CacheCompiledArtifact.load",
    ),
    "*path, *format=",
    why="A standalone artifact with a missing or damaged entry ends in an AssertionError or FXGraphCacheMiss that "
    "does not name its file.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/standalone_compile.py#L272",
)
def load(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """CompiledArtifact.load and CacheCompiledArtifact.load.

    Raises RefusedArtifactError, in default mode too, if the artifact holds a refused entry: no graph can be recompiled.
    If torch itself cannot read it, its error names the file too.
    """
    path = kwargs.get("path", "")
    origin = artifacts.report_as(path, is_unguarded=True)
    with artifacts.raise_on_refusal(), events.propagate_strict(), origin:
        try:
            # Which of the two classes is asked does the lookup, and the other it does not.
            with searches.track_lookup(Ref(Kind.AOT_ENTRY), lambda: os.path.basename(path), must_ask=True) as search:
                _refuse_special_file(path)
                place = vllm_files.place_artifact(path) if compiles.current.can_compile else path
                artifact = wrapped(*args, **(kwargs | {"path": place} if place != path else kwargs))
                search.end_as_hit()
                return artifact
        except Exception as error:
            is_of_memory = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
            can_compile = compiles.current.can_compile and not is_of_memory  # none is left for another entry either
            if can_compile and not events.list_refusals():
                evidence = f"it does not load ({type(error).__name__}: {next(iter(str(error).splitlines()), '')})"
                refusal = Refusal(Reason.DAMAGED, evidence, "vLLM recompiles it, and replaces it.")
                report.refuse(refusal, Kind.OTHER, path)
            refused = events.list_refusals()
            # By name: the module that defines it is imported by the load itself.
            is_miss = isinstance(error, AssertionError) or type(error).__name__ == "FXGraphCacheMiss"
            if refused and (can_compile or is_miss):
                raise RefusedArtifactError(f"safecache: the artifact {path} cannot be loaded: {refused[0]}") from error
            if not refused and os.path.exists(path) and _is_of_reader(error):
                said = f"(safecache: {path} is damaged, of another torch, or not of this format. {_ARTIFACT_REMEDY})"
                raise load_errors.append_text(error, said) from error
            raise


@hook(
    "torch._inductor.standalone_compile:CacheCompiledArtifact.__init__(self, compiled_fn, artifacts)",
    why="Torch logs at level DEBUG alone that a standalone artifact cannot be saved, and forgets why.",
    issue="https://github.com/pytorch/pytorch/pull/187849",
)
def init(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """CacheCompiledArtifact.__init__, at the end of a compile: notes why it cannot be saved, if so."""
    wrapped(*args, **kwargs)
    if not instance.is_saveable():
        saving.blame(instance)


@hook(
    "torch._inductor.standalone_compile:CacheCompiledArtifact.save(self, *path, *format=)",
    why="The error for an artifact that cannot be saved does not say which object fails to pickle.",
    issue="https://github.com/vllm-project/vllm/pull/33571",
)
def save(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """CacheCompiledArtifact.save: torch's error for what cannot be saved names the object that does not pickle."""
    try:
        wrapped(*args, **kwargs)
        vllm_files.attest_artifact(kwargs.get("path", ""))
    except RuntimeError as error:
        said = saving.describe_save_failure(instance)
        if not said:
            raise
        raise load_errors.append_text(error, said) from error


def _refuse_special_file(path: str) -> None:
    """Raise RefusedArtifactError for anything but a file or a directory: opening a FIFO would block forever."""
    with suppress(OSError):  # a missing file fails as in stock torch
        mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise RefusedArtifactError(f"safecache: the artifact {path} cannot be loaded: it is no file.")


class _VerifyingPickle(wrapt.ObjectProxy[Any]):
    """The pickle module, except that ``load`` only reads verified FX graph entries."""

    def __init__(self, module: Any, enabled: Callable[[], bool]) -> None:
        super().__init__(module)
        self._self_enabled = enabled

    def load(self, file: Any) -> Any:
        """Unpickle a verified entry from ``file``. Raises RefusedArtifactError, in default mode too, if refused."""
        if not self._self_enabled():
            return self.__wrapped__.load(file)
        path = file.name
        with artifacts.raise_on_refusal(), events.propagate_strict():
            cache_key = os.path.basename(os.path.dirname(path))
            root = layout.find_cache_root(path)
            content = loading.read_unverified(Kind.FX_ENTRY, path)
            ref = Ref(Kind.FX_ENTRY, cache_key, root)
            if content is None or not loading.accept_or_quarantine(ref, content, path=path):
                refused = events.list_refusals() or [f"{path} is gone."]
                raise RefusedArtifactError(f"safecache: {refused[-1]} The artifact was not saved whole.")
        return self.__wrapped__.loads(content)


@verifier(
    "torch._inductor.standalone_compile:pickle",
    PICKLE_MODULE,
    why="Saving an unpacked artifact unpickles every file under its keys, even old ones that rmtree failed to remove.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/standalone_compile.py#L244",
)
def verifying_pickle(module: Any, *, enabled: Callable[[], bool]) -> Any:
    """Return a proxy of the module ``pickle`` that verifies the entries of an artifact that is unpacked.

    These include whatever the directory held before and could not be removed.
    """
    return _VerifyingPickle(module, enabled)


def _is_of_reader(error: Exception) -> bool:
    """Tell whether torch found that the bytes are not what it has written, by their checksum, header or sizes."""
    where = error.__traceback__
    while where is not None and where.tb_next is not None:
        where = where.tb_next
    file = os.path.basename(where.tb_frame.f_code.co_filename) if where is not None else ""
    return type(error) in (RuntimeError, AssertionError) and file in _READERS


@verifier(
    "torch._inductor.runtime.caching.implementations:_OnDiskCacheImpl.get(self, key)",
    why="The on-disk memoizer checks a version header alone, and its caller unpickles whatever bytes follow.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/runtime/caching/implementations.py#L301",
)
def get_cached(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """_OnDiskCacheImpl.get: a refused value is a miss, and a hit has the value alone, without its seal."""

    def find(key: str) -> Any:
        path, root = str(instance._fpath_from_key(key)), str(instance._base_dir)
        hit = wrapped(key) if loading.check_readable(Kind.MEMO, path) else None
        if hit is None:
            return None
        # In the file torch's own header comes before it.
        ref = Ref(Kind.MEMO, _make_cache_key(instance, key), root)
        admitted = loading.accept_or_quarantine(ref, hit.value, origin=path, whole=False)
        return dataclasses.replace(hit, value=seal.strip_unverified(hit.value)) if admitted else None

    return find(*args, **kwargs)


@verifier(
    "torch._inductor.runtime.caching.implementations:_OnDiskCacheImpl.insert(self, key, value)",
    why="The on-disk memoizer writes values in place, and never replaces a partial one that a killed process left.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/runtime/caching/implementations.py#L320",
)
def insert_cached(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> bool:
    """_OnDiskCacheImpl.insert: replaces an existing value that is refused; False if there is a good one, or no key."""

    def put(key: str, value: bytes) -> bool:
        if not saving.can_seal(Kind.MEMO):
            return False
        content = saving.seal_payload(value, Kind.MEMO, _make_cache_key(instance, key))
        inserted: bool = wrapped(key, content)
        if inserted:
            return True
        if instance.get(key) is not None:
            return False
        instance._fpath_from_key(key).unlink(missing_ok=True)
        inserted = wrapped(key, content)
        return inserted

    return put(*args, **kwargs)


def _make_cache_key(cache: Any, key: str) -> str:
    # With its folder, since the same arguments have the same key for every memoized function.
    path: str = os.path.relpath(cache._fpath_from_key(key), cache._base_dir)
    return path
