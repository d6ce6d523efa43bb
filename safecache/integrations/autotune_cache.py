"""Results of measuring: best configurations of kernels, and what Inductor chose by its measurements."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from safecache.entries import artifacts, loading
from safecache.patching.hook import hook, verifier
from safecache.places import layout
from safecache.places.layout import CodeFile
from safecache.places.refs import locate
from safecache.reporting import events, report
from safecache.reporting.kinds import Kind, Reason
from safecache.reporting.report import Refusal
from safecache.signing import trust
from safecache.store import attestations, bundles, directories, gate, manifests
from safecache.tiers.directory_faults import Unreadable

__all__ = ["get_local_cache", "load_cache", "read_best", "save", "update_local_cache"]

_REMEDY = "The kernel is tuned again."
# What torch raises for a malformed result, wherever it comes from.
_MALFORMED = (AssertionError, AttributeError, KeyError, TypeError, ValueError)


class _Results:
    """The local cache of results for one call: attests what is put into it, and checks what is read from it."""

    def __init__(self, cache: Any) -> None:
        self._cache = cache
        self.found = False
        self.attested = False
        self.unread: Unreadable | None = None

    def get(self, key: str) -> Any:
        root = _find_root()
        if not os.path.lexists(key):
            bundles.fetch(locate(Kind.AUTOTUNING, key, root))
        # Torch would wait for anything but a regular file.
        if os.path.lexists(key) and loading.read_unverified(Kind.AUTOTUNING, key) is None:
            return None
        self.found = os.path.lexists(key)
        result = self._cache.get(key)
        try:
            file = CodeFile(key, root, Kind.AUTOTUNING)
            digest = hashlib.sha256(_encode_canonical(result)).digest()
            # By itself it is not refused: read_best() is about what it names.
            known = attestations.is_known(key, digest=digest)
            self.attested = (
                known or gate.judge_content(file, digest, [*manifests.read_unverified_records(file)]) is None
            )
        except Unreadable as error:
            self.unread = error
        return result

    def put(self, key: str, result: Any) -> None:
        gate.attest_file(CodeFile(key, _find_root(), Kind.AUTOTUNING), _encode_canonical(result))
        try:
            self._cache.put(key, result)
        except OSError as error:
            report.fail_write(f"save {Kind.AUTOTUNING.noun} {key}", error, "It will be tuned again.", key)
        else:
            directories.propagate_file(CodeFile(key, kind=Kind.AUTOTUNING))


@contextmanager
def _judge_results(instance: Any) -> Iterator[_Results]:
    local = instance.local_cache
    results = _Results(local[0] if local else None)
    if local:
        instance.local_cache = (results, _localize_path(local[1]), *local[2:])
    try:
        yield results
    finally:
        instance.local_cache = local


def _localize_path(path: str) -> str:
    """Return where this process's cache keeps ``path``: an autotuner in an entry names the directory it was made in.

    That directory may be gone, or be another user's, which this one may not enter.
    """
    above, name = os.path.split(path)
    folder = os.path.basename(above)
    return os.path.join(_find_root(), folder, name) if layout.CODE_FOLDER.fullmatch(folder) else path


@verifier(
    "torch._inductor.runtime.autotune_cache:AutotuneCache.save(self, config, time_taken_ns, found_by_coordesc=, "
    "triton_cache_hash=)",
    why="Torch lets the OSError of writing a best_config file end the run, although only the save failed.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/runtime/autotune_cache.py#L363",
)
def save(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """AutotuneCache.save: attests the result of this process's tuning."""
    with _judge_results(instance):
        return wrapped(*args, **kwargs)


@verifier(
    "torch._inductor.runtime.autotune_cache:AutotuneCache.read_best(self, inductor_meta, configs)",
    why="A malformed best_config file ends the compile, and torch runs any configuration that a well-formed one names.",
    issue="https://github.com/pytorch/pytorch/pull/184096",
)
def read_best(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """AutotuneCache.read_best: an unattested result can only choose among Inductor's own candidates.

    Torch would accept any configuration that it names, and a block that is too small computes something else.
    """

    def read(inductor_meta: Any, configs: list[Any]) -> Any:
        with events.propagate_strict():
            with _judge_results(instance) as results:
                try:
                    best = wrapped(inductor_meta, configs)
                except Exception as error:
                    if results.attested or not isinstance(error, _MALFORMED):
                        raise
                    text, where = f"it cannot be read: {type(error).__name__}: {error}", _name_place(instance, results)
                    return report.refuse(Refusal(Reason.UNLOADABLE, text), Kind.AUTOTUNING, where, _REMEDY, error=error)
            if best is None or results.attested or _is_candidate(best, configs):
                return best
            text, where = "it names a configuration that Inductor did not propose", _name_place(instance, results)
            if results.unread is not None:
                text = f"{text}, and {results.unread.evidence}"
                refusal = Refusal(Reason.UNREADABLE, text, _REMEDY)
                return report.refuse(refusal, Kind.AUTOTUNING, where, error=results.unread)
            refusal = Refusal(Reason.UNSEALED, f"{text}, and nobody that is trusted has sealed it")
            if trust.is_observed(refusal, Kind.AUTOTUNING, where):
                return best
            return report.refuse(refusal, Kind.AUTOTUNING, where, _REMEDY)

    return read(*args, **kwargs)


def _name_place(instance: Any, results: _Results) -> str:
    """Return where the result is stored, for messages: torch asks the remote cache for what the local one lacks."""
    remote, local = instance.remote_cache, instance.local_cache
    return str(local[1]) if local and (results.found or not remote) else loading.describe_remote(remote and remote[0])


def _is_candidate(best: Any, configs: list[Any]) -> bool:
    options = getattr(best, "extra_options", None)
    if options:
        best.extra_options = None  # leaves the candidate as it was
    return not options and any(best is config for config in configs)


def _encode_canonical(result: Any) -> bytes:
    return json.dumps(result, sort_keys=True).encode()


def _find_root() -> str:
    root: str = sys.modules["torch._inductor.runtime.cache_dir_utils"].cache_dir()
    return root


class _SafeNames:
    """The remote cache of bundles, without results that torch would write outside its cache directory."""

    def __init__(self, remote: Any) -> None:
        self._remote = remote

    def get(self, key: str) -> Any:
        bundle = self._remote.get(key)
        if not isinstance(bundle, dict):
            return bundle
        return {name: result for name, result in bundle.items() if self._accept(name)}

    def _accept(self, name: str) -> bool:
        safe = artifacts.is_autotuning_name(name)
        return artifacts.accept_name(Kind.AUTOTUNING, name, loading.describe_remote(self._remote), safe=safe)


@verifier(
    "torch._inductor.runtime.autotune_cache:_AutotuneCacheBundlerImpl._load_cache(self)",
    why="Torch turns names from the remote autotuning bundle into file paths unchecked, so an absolute name writes "
    "outside the cache directory.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/runtime/autotune_cache.py#L461",
)
def load_cache(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """_AutotuneCacheBundlerImpl._load_cache, which makes paths of results' names: unsafe names are dropped.

    A bundle that is none is as good as none.
    """
    remote = instance._cache
    instance._cache = _SafeNames(remote)
    try:
        with events.propagate_strict():
            return wrapped(*args, **kwargs)
    except _MALFORMED as error:
        text = f"it cannot be read: {type(error).__name__}: {error}"
        refusal = Refusal(Reason.UNLOADABLE, text, _REMEDY)
        report.refuse(refusal, Kind.AUTOTUNING, loading.describe_remote(remote), error=error)
        return False
    finally:
        instance._cache = remote


_LOCAL_REMEDY = "What it holds is measured again."


@hook(
    "torch._inductor.codecache:CacheBase.get_local_cache(self)",
    why="Torch parses the local cache of measurements without a try, so a malformed file ends the compile.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/codecache.py#L415",
)
def get_local_cache(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """CacheBase.get_local_cache: empty if the file cannot be read, or holds anything but measurements."""
    path = str(instance.get_local_cache_path())
    # Torch would wait for anything but a regular file, or ignore it silently.
    if os.path.lexists(path) and loading.read_unverified(Kind.AUTOTUNING, path) is None:
        return {}
    try:
        found = wrapped(*args, **kwargs)
    except Exception as error:
        text = f"it cannot be read: {type(error).__name__}: {error}"
        report.refuse(Refusal(Reason.UNLOADABLE, text), Kind.AUTOTUNING, path, _LOCAL_REMEDY, error=error)
        return {}
    if isinstance(found, dict) and all(map(_is_measured, found.values())):
        return found
    refusal = Refusal(Reason.WRONG_TYPE, "it holds other things than measurements", _LOCAL_REMEDY)
    report.refuse(refusal, Kind.AUTOTUNING, path)
    return {}


def _is_measured(value: Any) -> bool:
    """Tell whether ``value`` is a measurement, or measurements nested by operation and so on, or by cache key."""
    if isinstance(value, dict):
        return all(map(_is_measured, value.values()))
    return value is None or isinstance(value, (int, float))


@hook(
    "torch._inductor.codecache:CacheBase.update_local_cache(self, local_cache)",
    why="Torch lets an OSError end the compile where it cannot write the local cache of measurements.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/codecache.py#L418",
)
def update_local_cache(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """CacheBase.update_local_cache: a failure to write is reported, and the results are measured again next time."""
    try:
        wrapped(*args, **kwargs)
    except OSError as error:
        path = str(instance.get_local_cache_path())
        report.fail_write(f"save {Kind.AUTOTUNING.noun} {path}", error, _LOCAL_REMEDY, path)
