"""Scenes with the file system under Triton's cache: what fails there, and when."""

from __future__ import annotations

import errno
import os
import pkgutil
import shutil
from types import SimpleNamespace
from unittest import mock

from scenes.kernel_scenes import compile_kernel


def compile_while_failing(call, error, times=None):
    from safecache.testing import failing  # not where it is not installed: the scenes of patched sources

    with failing(call, error, os.environ["TRITON_CACHE_DIR"], times):
        return compile_kernel()


def compile_where_clean_up_fails():
    """As where another client of a network file system has the directory open: rmdir(2) says EBUSY."""

    def busy(path, *rest, **named):
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), path)

    with mock.patch.object(os, "rmdir", busy):
        return compile_kernel()


def compile_and_clear(when):
    """The cache is cleared ``when`` a method of the manager returns."""
    from triton.runtime import cache

    method = getattr(cache.FileCacheManager, when)

    def and_clear(self, *rest, **named):
        answer = method(self, *rest, **named)
        shutil.rmtree(os.environ["TRITON_CACHE_DIR"], ignore_errors=True)
        return answer

    with mock.patch.object(cache.FileCacheManager, when, and_clear):
        return compile_kernel()


def compile_in_two_caches(second):
    """TRITON_CACHE_DIR names another directory from one kernel to the next, and the first one again."""
    first = os.environ["TRITON_CACHE_DIR"]
    compiled = []
    for directory in (first, second, first, second):
        os.environ["TRITON_CACHE_DIR"] = directory
        compiled.append(compile_kernel()["compiled"])
    return compiled


def compile_twice():
    return [compile_kernel()["compiled"], compile_kernel()["compiled"]]


def put_as_another_writer(name, content):
    """Replace a file of the only kernel, as a writer does who is not done with the group."""
    from triton.runtime import cache

    root = os.environ["TRITON_CACHE_DIR"]
    (key,) = [entry for entry in os.listdir(root) if not entry.startswith(".")]
    cache.FileCacheManager(key).put(bytes.fromhex(content), name)


def tune():
    """Whether configurations were timed, or their times were in the cache."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import autotuner

    from scenes.triton_kernels import autotuned_scale

    timed = []

    def bench():
        timed.append(1)
        autotuned_scale.configs_timings = {config: [1.0, 1.0, 1.0] for config in autotuned_scale.configs}

    active = SimpleNamespace(get_current_target=lambda: GPUTarget("cuda", 90, 32))
    with mock.patch.object(autotuner, "driver", SimpleNamespace(active=active)):
        autotuned_scale.check_disk_cache(("n",), autotuned_scale.configs, bench)
    return bool(timed)


def text_of(extension):
    """The kernel's text at this stage, with overriding as the environment says."""
    from triton.compiler import CompiledKernel

    seen = []
    make = CompiledKernel.__init__

    def keep(self, *rest, **named):
        make(self, *rest, **named)
        seen.append(self.asm[extension])

    with mock.patch.object(CompiledKernel, "__init__", keep):
        compile_kernel()
    return seen[0]


def _collect():
    """What goes into an entry of the only kernel in the cache."""
    from torch._inductor import config, triton_bundler

    root = os.environ["TRITON_CACHE_DIR"]
    (key,) = [name for name in os.listdir(root) if not name.startswith(".")]
    with config.patch(bundle_triton_into_fx_graph_cache=True):
        triton_bundler.TritonBundler.begin_compile()
        triton_bundler.TritonBundler._entries.append(triton_bundler.TritonBundleEntry(key, 0, root))
        return triton_bundler.TritonBundler.collect()[0]


def bundled_names():
    compile_kernel()
    return [artifact.filename for kernel in _collect().kernel_artifacts for artifact in kernel.artifacts]


def emit_bundle(directory):
    """A kernel out of an entry, in a cache that has it not; then it is asked for."""
    from torch._inductor import config, triton_bundler

    compile_kernel()
    bundle = _collect()
    assert bundle.kernel_artifacts
    os.environ["TRITON_CACHE_DIR"] = directory
    with config.patch(bundle_triton_into_fx_graph_cache=True):
        triton_bundler.TritonBundler.read_and_emit(bundle)
    return compile_kernel()


def in_inductors_cache(of):
    """Another scene, with Triton's cache where Inductor has it: not where TRITON_CACHE_DIR says."""
    from torch._inductor.runtime import cache_dir_utils

    os.environ.pop("TRITON_CACHE_DIR", None)
    os.environ["TRITON_CACHE_DIR"] = cache_dir_utils.triton_cache_dir(0)
    return pkgutil.resolve_name(of)()
