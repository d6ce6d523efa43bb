"""Scenes with the kernels that an entry carries, as Inductor bundles them, and with those that it leaves in the cache."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
from unittest import mock

from scenes.kernel_scenes import compile_kernel

BUNDLING = {"bundle_triton_into_fx_graph_cache": True}
CONFIGS = ({"XBLOCK": 512}, {"XBLOCK": 1024})


@contextlib.contextmanager
def _layout(triton):
    """Triton's cache is where ``triton`` says, or below Inductor's; a GPU is there."""
    from torch._inductor import config

    from scenes import autotuners

    os.environ.pop("TRITON_CACHE_DIR", None)
    if triton is not None:
        os.environ["TRITON_CACHE_DIR"] = triton
    with autotuners.driver() as driver, config.patch(BUNDLING):
        yield driver


def save_kernels(path, triton, bundled):
    """Compile a kernel for each of CONFIGS, and bundle the first so many, and a kernel that is in no graph.

    As torch leaves out of an entry what has lost, or was not launched, while another kernel of the graph was tuned.
    """
    from torch._inductor.triton_bundler import TritonBundler

    from scenes import autotuners

    with _layout(triton):
        TritonBundler.begin_compile()
        for number, each in enumerate(CONFIGS):
            tuner = autotuners.compiled(configs=[each])
            TritonBundler.put_static_autotuner(str(number), tuner)
            if number < bundled:
                TritonBundler.put_winner(tuner.launchers[0].cache_hash)
        if not bundled:
            TritonBundler.put_winner("no kernel")
        bundle, _ = TritonBundler.collect()
        assert len(bundle.kernel_artifacts) == bundled and len(bundle.static_autotuners) == len(CONFIGS)
        with open(path, "wb") as file:
            pickle.dump(bundle, file)
        return {"cubin": compile_kernel()["cubin"]}


class _Lines(logging.Handler):
    """What torch says, tracebacks included."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.lines = []

    def emit(self, record):
        self.lines += logging.Formatter().format(record).splitlines()


def load_kernels(path, triton):
    """As torch does on a hit: the kernels that it finds are launched, and the others compiled; and one of no graph."""
    from torch._inductor.async_compile import CompiledTritonKernels
    from torch._inductor.triton_bundler import TritonBundler
    from triton.compiler import ASTSource

    from scenes import autotuners

    lines, compiled, parse = _Lines(), [], ASTSource.make_ir
    logging.getLogger("torch").addHandler(lines)
    with _layout(triton) as driver, open(path, "rb") as file:
        TritonBundler.read_and_emit(pickle.load(file))
        found = {key: CompiledTritonKernels._cache.pop(key, None) for key in map(str, range(len(CONFIGS)))}
        with mock.patch.object(
            ASTSource, "make_ir", lambda *rest, **named: compiled.append(1) or parse(*rest, **named)
        ):
            for future, each in zip(found.values(), CONFIGS, strict=True):
                if future is None:
                    autotuners.launch(autotuners.compiled(configs=[each]).launchers[0])
                else:
                    autotuners.launch(future.static_autotuner.compile_results[0].make_launcher())
            autotuners.autotuner()  # only since then does Triton itself look where Inductor does
            free = compile_kernel()
        return {
            "found": sum(future is not None for future in found.values()),
            "compiled": len(compiled),
            "launched": len(driver.launched),
            "cubin": free["cubin"],
            "lines": lines.lines,
        }
