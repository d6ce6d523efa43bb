"""torch._dynamo: AOT-compiled functions and models, precompiled artifacts, packages and profiles."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable
from typing import Any

from safecache import compiles, load_errors
from safecache.entries import artifacts, saving, searches
from safecache.errors import RefusedArtifactError
from safecache.integrations.pickle_module import SealingPickle
from safecache.patching.hook import PICKLE_MODULE, verifier
from safecache.places.layout import CodeFile
from safecache.places.refs import Ref
from safecache.reporting import events, report
from safecache.reporting.kinds import Kind, Reason
from safecache.reporting.report import Refusal
from safecache.signing import provenance, trust
from safecache.store import directories

__all__ = [
    "deserialize",
    "deserialize_model",
    "get_local_code_state",
    "load_package",
    "lookup_remote_cache_entry",
    "put_code_state",
    "put_local_code_state",
    "read_package",
    "sealing_package_pickle",
    "sealing_pickle",
    "serialize",
    "serialize_model",
    "write_package",
]


@verifier(
    "torch._dynamo.aot_compile:AOTCompiledFunction.serialize(cls, fn, external_data=)",
    why="Stock torch writes a compiled function as a bare pickle without a signature, so no loader can tell a "
    "forged one.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_dynamo/aot_compile.py#L1150",
)
def serialize(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """AOTCompiledFunction.serialize: seals the bytes, whoever writes them to a file."""
    result = wrapped(*args, **kwargs)
    function = kwargs["fn"] if "fn" in kwargs else args[0]
    sealed = saving.seal_payload(result.serialized_data, Kind.AOT_FUNCTION, made=function)
    return dataclasses.replace(result, serialized_data=sealed)


@verifier(
    "torch._dynamo.aot_compile:AOTCompiledFunction.deserialize(cls, data, f_globals=, external_closure_data=)",
    "cls, data, f_globals=, external_closure_data=, *guard_globals=, *forward_not_resolved_reason=",  # 2.15
    why="Stock torch unpickles a compiled function's bytes before it checks anything about their origin or "
    "compatibility.",
    issue="https://github.com/pytorch/pytorch/issues/196521",
)
def deserialize(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """AOTCompiledFunction.deserialize. Raises RefusedArtifactError, in default mode too; vLLM then compiles again."""

    def load(data: bytes, *rest: Any, **named: Any) -> Any:
        def find_name() -> str:
            return compiles.current.origin or compiles.name_current()

        return _load_verified(Kind.AOT_FUNCTION, data, find_name, lambda: wrapped(data, *rest, **named))

    return load(*args, **kwargs)


def _load_verified(kind: Kind, data: bytes, name: Callable[[], str], load: Callable[[], Any]) -> Any:
    """Verify the bytes, and return what ``load`` makes of them. Counts as a lookup, except within a model's load."""
    if searches.is_under_way(Kind.AOT_MODEL):
        artifacts.require(kind, data)
        return load()
    with searches.track_lookup(Ref(Kind.AOT_MODEL), name) as search:
        artifacts.require(kind, data)
        try:
            loaded = load()
        except Exception as error:
            search.end_as_unloadable(error)
            raise
        search.end_as_hit()
        return loaded


@verifier(
    "torch._dynamo.aot_compile:AOTCompiledModel.serialize(self)",
    why="Stock torch pickles a compiled model without a signature, so no loader can tell a forged or altered one.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_dynamo/aot_compile.py#L2402",
)
def serialize_model(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> bytes:
    """AOTCompiledModel.serialize: seals the bytes."""
    return saving.seal_payload(wrapped(*args, **kwargs), Kind.AOT_MODEL)


@verifier(
    "torch._dynamo.aot_compile:AOTCompiledModel.deserialize(cls, model, data)",  # to 2.14
    "cls, model, data, *guard_globals=",
    why="Stock torch unpickles a compiled model's bytes before it checks anything about their origin or compatibility.",
    issue="https://github.com/pytorch/pytorch/issues/196521",
)
def deserialize_model(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """AOTCompiledModel.deserialize. Raises RefusedArtifactError, in default mode too."""

    def load(model: Any, data: bytes, **named: Any) -> Any:
        name = f"{type(model).__module__}.{type(model).__qualname__}"
        return _load_verified(Kind.AOT_MODEL, data, lambda: name, lambda: wrapped(model, data, **named))

    return load(*args, **kwargs)


class _GraphPickle(SealingPickle):
    """The pickle module, except that every graph is sealed, and verified before it is unpickled."""

    def dumps(self, obj: object, *args: Any, **kwargs: Any) -> bytes:
        """Pickle ``obj``, and seal the bytes while enabled; an error that occurs then names the path to the culprit."""
        if not self._self_enabled():
            return super().dumps(obj, *args, **kwargs)
        try:
            content = super().dumps(obj, *args, **kwargs)
        except Exception as error:
            said = saving.explain_unpicklable(obj, "graph")
            if not said:
                raise
            raise load_errors.append_text(error, said) from error
        return saving.seal_payload(content, Kind.AOT_GRAPH)

    def loads(self, data: bytes, *args: Any, **kwargs: Any) -> Any:
        """Unpickle ``data`` once it is verified. Raises RefusedArtifactError, in default mode too, if refused."""
        if self._self_enabled():
            artifacts.require(Kind.AOT_GRAPH, data)
        return self.__wrapped__.loads(data, *args, **kwargs)


@verifier(
    "torch._dynamo.aot_compile_types:pickle",
    PICKLE_MODULE,
    why="Stock torch unpickles any graph in an artifact, and its PicklingError on saving does not say which object "
    "is the culprit.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_dynamo/aot_compile_types.py#L191",
)
def sealing_pickle(module: Any, *, enabled: Callable[[], bool]) -> Any:
    """A proxy of the module ``pickle`` for code that pickles whole graphs only."""
    return _GraphPickle(module, enabled)


@verifier(
    "torch._dynamo.package:pickle",
    PICKLE_MODULE,
    why="Torch pickles entries without a checksum or signature, so flipped bits and planted entries unpickle "
    "unnoticed.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/codecache.py#L2362",
)
@verifier(
    "torch._dynamo.pgo:pickle",
    PICKLE_MODULE,
    why="Torch pickles entries without a checksum or signature, so flipped bits and planted entries unpickle "
    "unnoticed.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/codecache.py#L2362",
)
def sealing_package_pickle(module: Any, *, enabled: Callable[[], bool]) -> Any:
    """A proxy of the module ``pickle`` that seals entries while ``enabled()``."""
    return SealingPickle(module, enabled)


# The seal's field for the digest of the entry's function.
_FUNCTION = "function"


@verifier(
    "torch._dynamo.package:DiskDynamoStore.write(self, cache_entry, path)",
    why="Stock torch pickles the package without a signature, and raises RuntimeError if it cannot write the file.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_dynamo/package.py#L1698",
)
def write_package(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """DiskDynamoStore.write: sealed under the last part of its path, which is all that DiskDynamoCache looks up by."""

    def save(cache_entry: Any, path: str) -> None:
        if saving.can_seal(Kind.DYNAMO_PACKAGE):
            main = cache_entry.dynamo.codes[0]
            of = {_FUNCTION: provenance.digest_code(main.python_code, of=main.python_module, line=True)}
            ref = Ref(Kind.DYNAMO_PACKAGE, _name_package(path))
            with saving.guard_save(ref, cache_entry, also=of):
                wrapped(cache_entry, path)
                directories.propagate_file(CodeFile(_locate_package(instance, path), kind=ref.kind), key=ref.key)

    save(*args, **kwargs)


@verifier(
    "torch._dynamo.package:DiskDynamoStore.read(self, path)",
    why="Stock torch unpickles whatever package file lies in the cache directory.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_dynamo/package.py#L1724",
)
def read_package(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """DiskDynamoStore.read. Raises RefusedArtifactError, in default mode too, for a refused entry."""

    def load(path: str) -> Any:
        with artifacts.raise_on_refusal(), events.propagate_strict():
            if compiles.current.pinned is not None:
                return wrapped(path)
            content = artifacts.read(Ref(Kind.DYNAMO_PACKAGE, _name_package(path)), _locate_package(instance, path))
            if content is None:
                raise RefusedArtifactError(f"safecache: {events.list_refusals()[-1]}")
            with compiles.override_scope(pinned=(Kind.DYNAMO_PACKAGE, content)):
                return wrapped(path)

    return load(*args, **kwargs)


@verifier(
    "torch._dynamo.package:DiskDynamoCache.load(self, fn)",
    why="The key is only a function's name and first line, so a function from another file gets a false cache hit.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_dynamo/package.py#L1503",
)
def load_package(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """DiskDynamoCache.load: a refused entry is a miss, and so is one of another function."""

    def find(fn: Callable[..., Any]) -> Any:
        key = sys.modules["torch._dynamo.package"].CompilePackage.source_id_from_fn(fn)
        with events.propagate_strict():
            root = os.path.dirname(instance.path_prefix())
            content = artifacts.read(Ref(Kind.DYNAMO_PACKAGE, _name_package(key), root), _locate_package(instance, key))
            if content is None or (content and not _is_of_function(fn, key, content, _locate_package(instance, key))):
                return None
            with compiles.override_scope(pinned=(Kind.DYNAMO_PACKAGE, content)):
                found = wrapped(fn)
            return None if found is None or _is_crashing(found, _locate_package(instance, key), root) else found

    return find(*args, **kwargs)


def _is_crashing(package: Any, path: str, root: str) -> bool:
    """Tell whether processes have died of a graph in it; reported, if so. Torch fails if it does not load later."""
    found = (artifacts.find_load_refusal(getattr(each, "content", None), root) for each in package.backends.values())
    refusal = next(filter(None, found), None)
    if refusal is not None:
        report.refuse(refusal, Kind.DYNAMO_PACKAGE, path, "Recompiling the function.")
    return refusal is not None


def _is_of_function(fn: Callable[..., Any], key: str, content: bytes, path: str) -> bool:
    """Tell whether the entry is of this very function: torch's key is only its name and first line, in any file."""
    innermost = sys.modules["torch._dynamo.eval_frame"].innermost_fn(fn)
    here = provenance.digest_code(innermost.__code__, of=innermost.__module__, line=True)
    there = artifacts.read_sealed_provenance(Kind.DYNAMO_PACKAGE, _name_package(key), content).get(_FUNCTION)
    if there == here:
        return True
    evidence = "it is of another function of the same name, in the same line" if there else "it does not say of which"
    refusal = Refusal(Reason.KEY_DIFFERS, evidence)
    if trust.is_observed(refusal, Kind.DYNAMO_PACKAGE, path):
        return True
    report.refuse(refusal, Kind.DYNAMO_PACKAGE, path, "The function is compiled.")
    return False


def _name_package(path: str) -> str:
    return os.path.basename(os.path.normpath(path))


def _locate_package(store: Any, path: str) -> str:
    return os.path.join(store.path_prefix(), path, "entry")


@verifier(
    "torch._dynamo.pgo:get_local_code_state(cache_key)",
    why="Stock torch unpickles whatever profile lies in the cache, and one of a wrong type ends the compile.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_dynamo/pgo.py#L827",
)
def get_local_code_state(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """get_local_code_state: a refused profile is a miss."""

    def get(cache_key: str) -> Any:
        path = _get_pgo().code_state_path(cache_key)
        if path is None:
            return wrapped(cache_key)
        with events.propagate_strict():
            root = os.path.dirname(os.path.dirname(path))
            content = artifacts.read(Ref(Kind.PGO_STATE, cache_key, root), path)
            if content is None:
                return None
            with compiles.override_scope(pinned=(Kind.PGO_STATE, content)):
                return wrapped(cache_key)

    return get(*args, **kwargs)


@verifier(
    "torch._dynamo.pgo:lookup_remote_cache_entry(remote_cache, cache_key, event_name=)",
    why="Stock torch unpickles whatever profile the remote cache returns, so whoever can write there executes code "
    "here.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_dynamo/pgo.py#L868",
)
def lookup_remote_cache_entry(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """lookup_remote_cache_entry: a refused profile is a miss."""

    def look_up_entry(remote_cache: Any, *rest: Any, **named: Any) -> Any:
        with events.propagate_strict():
            return wrapped(artifacts.VerifiedRemote(remote_cache, Kind.PGO_STATE), *rest, **named)

    return look_up_entry(*args, **kwargs)


@verifier(
    "torch._dynamo.pgo:put_local_code_state(cache_key)",
    why="Stock torch writes the profile without a signature, and an exception from pickling or writing it ends the "
    "compile.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_dynamo/pgo.py#L1029",
)
def put_local_code_state(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """put_local_code_state: sealed, and copied to the shared tier if there is one."""

    def put(cache_key: str) -> None:
        wrapped(cache_key)
        path = _get_pgo().code_state_path(cache_key)
        if path is not None:
            directories.propagate_file(CodeFile(path, kind=Kind.PGO_STATE), key=cache_key)

    put_code_state(put, instance, args, kwargs)


@verifier(
    "torch._dynamo.pgo:put_remote_code_state(cache_key, extra_code_state=)",
    why="Stock torch uploads the profile without a signature, and an exception from pickling or storing it ends the "
    "compile.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_dynamo/pgo.py#L1071",
)
def put_code_state(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """put_remote_code_state and put_local_code_state: sealed; not written if there is no key to seal it."""

    def put(cache_key: str, *rest: Any, **named: Any) -> None:
        if saving.can_seal(Kind.PGO_STATE):
            with saving.guard_save(Ref(Kind.PGO_STATE, cache_key), _get_pgo()._CODE_STATE):
                wrapped(cache_key, *rest, **named)

    put(*args, **kwargs)


def _get_pgo() -> Any:
    return sys.modules["torch._dynamo.pgo"]
