"""One compile, in a worker: rebuilds what the parent has encoded, and compiles it with a cache of its own."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Triton imports these late: here that happens before the fork, instead of in each worker again.
import triton.compiler.code_generator
import triton.language.extra.cuda.libdevice  # noqa: F401
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import compiler
from triton.runtime import cache
from triton.runtime.driver import driver

from safecache.isolation import encoding, functions, protocol
from safecache.isolation.encoding import rebuild
from safecache.isolation.values import Decoder

__all__ = ["run"]

_get_cache_key = compiler.get_cache_key
_make_backend = compiler.make_backend


def run(job: dict[str, Any], directory: str) -> dict[str, Any]:
    """Compile; the kernel's files are then in one folder of ``directory``, as a group of Triton's cache.

    ``job``: {"source": encoding.encode(…), "target": [backend, arch, warp size], "key": what get_cache_key() gave,
    "triton_key": what triton_key() gave, "backend_key": what the backend's hash() gave}. Replies {"key": the hash that
    this process computes for the kernel, "folder", "metadata": the file names, "times": of the stages, in µs, and
    protocol.heard()}, or {"error": {"type", "message", "stage": what was being made}}. The files state the parent's
    cache key even if ours differs, which means that something was not sent. Anything else ends the process.
    """
    compile = _Compile(job, directory)
    with protocol.heard() as heard:
        try:
            reply = compile.run()
        except Exception as error:
            kind = type(error)
            name = f"{kind.__module__}.{kind.__qualname__}"
            reply = {"error": {"type": name, "message": str(error), "stage": compile.stage}}
    return reply | heard


class _Compile:
    def __init__(self, job: dict[str, Any], directory: str) -> None:
        self.job = job
        self.encoded: dict[str, Any] = job["source"]
        self.directory = directory
        self.stage = "source"
        self.own_key = ""
        self.times: dict[str, Any] = {}

    def run(self) -> dict[str, Any]:
        self._prepare()
        source = functions.rebuild(self.encoded, self.directory)
        kernel = compiler.compile(source, target=GPUTarget(*self.job["target"]))
        (metadata,) = (path for name, path in kernel.metadata_group.items() if name.endswith(".json"))
        folder, name = os.path.split(metadata)
        if self.encoded["kind"] == "lowered":
            Path(folder, f"{name.removesuffix('.json')}.source").write_text(self.encoded["text"], encoding="utf-8")
        key = hashlib.sha256(self.own_key.encode()).hexdigest()
        return {"key": key, "folder": os.path.basename(folder), "metadata": name, "times": self.times}

    def _prepare(self) -> None:
        """Set up Triton for this job only; the next one sets all of it again."""
        encoding.apply(self.encoded["knobs"])
        own = {"dir": self.directory, "manager_class": cache.FileCacheManager, "remote_manager_class": None}
        vars(knobs.cache).update(own)
        vars(knobs.compilation).update(listener=self._listen, always_compile=True)
        driver.set_active(_Driver(self.encoded["driver"]))
        # Hashing libtriton again would take as long as several compiles.
        cache.triton_key = lambda: self.job["triton_key"]
        compiler.get_cache_key = self._key
        compiler.make_backend = self._backend

    def _key(self, *rest: Any, **named: Any) -> str:
        self.own_key = _get_cache_key(*rest, **named)
        return str(self.job["key"])

    def _backend(self, target: Any) -> Any:
        backend = _make_backend(target)
        options = rebuild(backend, Decoder(_no_kernel).decode(self.encoded["options"]))
        backend.parse_options = lambda _: options
        # It holds the version of ptxas, which Triton caches, though torch 2.11 may set TRITON_PTXAS_PATH later.
        backend.hash = lambda: self.job["backend_key"]
        add_stages = backend.add_stages

        def add_watched(stages: dict[str, Any], *rest: Any) -> None:
            add_stages(stages, *rest)
            stages.update({name: self._watched(name, make) for name, make in stages.items()})

        backend.add_stages = add_watched
        return backend

    def _watched(self, stage: str, make: Callable[..., Any]) -> Callable[..., Any]:
        def make_watched(*rest: Any) -> Any:
            self.stage = stage
            Path(self.directory, protocol.STAGE_FILE).write_text(stage)
            return make(*rest)

        return make_watched

    def _listen(self, *, times: Any, **_: Any) -> None:
        self.times = dict(vars(times))


class _UnknownDriverError(Exception):
    """The kernel queries something that the parent could not provide."""


class _Driver:
    """Answers the queries of kernels while they are compiled; there is no GPU here."""

    def __init__(self, target: list[Any] | None) -> None:
        self._target = target

    def get_current_target(self) -> GPUTarget:
        if self._target is None:
            raise _UnknownDriverError("which GPU is the current one is not known in a worker")
        return GPUTarget(*self._target)

    def __getattr__(self, name: str) -> Any:
        raise _UnknownDriverError(f"{name} of the driver is not known in a worker")


def _no_kernel(_: int) -> Any:
    raise ValueError("an option is a kernel")
