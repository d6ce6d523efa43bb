"""torch._inductor.cpu_vec_isa: whether the CPU's vector instructions can be used is found out by loading a library."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from safecache.code import exec_directory, gate, library_builds, lock_guards
from safecache.entries import copies
from safecache.files import mounts
from safecache.hooks import cache_dir_utils
from safecache.loads import failures
from safecache.reporting import events
from safecache.reporting.kinds import Kind, Reason
from safecache.settings import config
from safecache.tiers import fallback

__all__ = ["check_build", "probe_load"]


def check_build(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> bool:
    """VecISA.check_build: verifies its library; says so when the cache's mount makes it answer no, and kernels slow."""

    def check() -> bool:
        with library_builds.guarding(), lock_guards.guarding(_take_unless_attested):
            usable: bool = wrapped(*args, **kwargs)
        return usable

    # Torch catches whatever is raised in there, and takes it that the CPU has no such instructions.
    with events.reading():
        cache_dir_utils.settle()
        library_builds.failure()
        usable = fallback.attempt(check)
        if not usable and fallback.replaced(library_builds.failure()):
            usable = check()
    cache: str = sys.modules["torch._inductor.codecache"].cache_dir()
    if not usable and mounts.forbids_execution(cache):
        events.report(
            Reason.NOT_EXECUTABLE,
            "torch cannot tell which vector instructions this CPU has, and compiles slow kernels without any: "
            f"its probe lies{failures.advice(cache, 'TORCHINDUCTOR_CACHE_DIR')}",
            cause=cache,
            remedy="If only a warm cache is read, TORCHINDUCTOR_VEC_ISA_OK=1 does without the probe.",
        )
    return usable


def _take_unless_attested(lock: lock_guards.Lock) -> None:
    cache: str = sys.modules["torch._inductor.codecache"].cache_dir()
    key = lock_guards.source_of(lock)
    if key is None or not gate.is_attested(os.path.join(cache, key[1:3], f"{key}.so"), cache):
        lock.take()


def probe_load(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """VecISA._probe_load: loads what was verified, in a process of its own, from where code is allowed to be."""

    def probe(output_path: str) -> Any:
        root = sys.modules["torch._inductor.codecache"].cache_dir()
        verified, content = gate.admit_code(output_path, root)
        loaded = wrapped(exec_directory.place(output_path, content) if config.current().exec_dir else verified)
        if loaded:
            # Torch puts an empty file there, from 2.14 on, and loads nothing where it finds one.
            marker = output_path + library_builds.LOADED
            gate.keep(marker, root, content=b"")
            record = gate.record_of(marker, b"", Kind.NATIVE_CODE, {}, root)
            copies.send_content(marker, b"", Kind.NATIVE_CODE, record=record)
        return loaded

    return probe(*args, **kwargs)
