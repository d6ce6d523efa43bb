"""Scenes that compare what we say lookups came to with what torch counts."""

from __future__ import annotations

import contextlib
import pkgutil
from unittest import mock

from safecache import history
from scenes import model_scenes

COUNTED = ("hit", "miss", "bypass")


def looked_up(how=None, **arguments):
    """What the lookups of a scene came to, and what torch has counted; an error counts too."""
    from torch._dynamo.utils import counters

    counters.clear()
    said = ""
    try:
        (pkgutil.resolve_name(how) if how else model_scenes.compile_model)(**arguments)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    aot, fx = counters["aot_autograd"], counters["inductor"]
    return {
        "lookups": history.get_counts(),
        "torch": {
            "aot": {name: aot[f"autograd_cache_{name}"] for name in COUNTED},
            "fx": {name: fx[f"fxgraph_cache_{name}"] for name in COUNTED},
        },
        "error": said,
    }


def compile_with_a_pass():
    """With one that has no name in the key: torch caches nothing then."""
    from torch._inductor import config as inductor_config

    with inductor_config.patch(post_grad_custom_post_pass=lambda graph: None):
        model_scenes.compile_model()


def compile_without_caches(inductor=None, functorch=None):
    from torch._functorch import config as functorch_config
    from torch._inductor import config as inductor_config

    with inductor_config.patch(inductor or {}), functorch_config.patch(functorch or {}):
        model_scenes.compile_model()


def compile_for_size(size):
    """A graph that is the same for all sizes, under a guard that is not."""

    import torch

    def double(x):
        if x.shape[0] > 10:
            pass
        return x * 2

    with torch.no_grad():
        torch.compile(double, dynamic=True)(torch.ones(size))


def compile_strictly():
    model_scenes.compile_model(strict_autograd_cache=True)


def kernels_looked_up(**knobs):
    """What the lookups of a kernel came to."""
    import triton

    from scenes.kernel_scenes import compile_kernel

    with triton.knobs.compilation.scope():
        for name, value in knobs.items():
            setattr(triton.knobs.compilation, name, value)
        compiled = compile_kernel()["compiled"]
    return {"lookups": history.get_counts(), "compiled": compiled}


def kernels_counted_by_triton(path):
    """What the lookups of a kernel and of a file of IR came to, and what Triton has told its listener of them."""
    import triton

    from scenes.kernel_scenes import compile_ir, compile_kernel

    told = []
    with triton.knobs.compilation.scope():
        triton.knobs.compilation.listener = lambda *, cache_hit, **_: told.append(cache_hit)
        compile_kernel()
        compile_ir(path)
    return {"lookups": history.get_counts(), "torch": {"triton": {"hit": told.count(True), "miss": told.count(False)}}}


def ahead_of_time(given, broken=False):
    """What the lookups came to where torch was given these files, and of how many it has made something."""
    from torch._dynamo.aot_compile import CompileArtifacts

    with contextlib.ExitStack() as stack:
        if broken:
            stack.enter_context(
                mock.patch.object(CompileArtifacts, "check_compatibility", side_effect=RuntimeError("no such torch"))
            )
        came = [_loaded(pkgutil.resolve_name(load), path) for load, path in given]
    return {
        "lookups": history.get_counts(),
        "torch": {"model": {"hit": came.count(None), "miss": len(came) - came.count(None)}},
        "errors": came,
    }


def _loaded(load, path):
    try:
        assert load(path)
    except Exception as error:
        return type(error).__name__
    return None


def compile_where_another_rank_missed():
    """As with a process group of two, of which the other has nothing in its cache."""
    from torch._functorch import config as functorch_config
    from torch._functorch._aot_autograd import autograd_cache

    with (
        functorch_config.patch(_sync_cache_decision_cross_ranks=True),
        mock.patch.object(autograd_cache, "sync_cache_decision_cross_ranks", lambda hit: False),
    ):
        model_scenes.compile_model()


def compile_where_code_cannot_be_loaded():
    """Torch takes it for a miss if what it generates of an entry cannot be written, or read."""
    from torch._inductor.output_code import CompiledFxGraph

    with mock.patch.object(CompiledFxGraph, "after_deserialization", side_effect=OSError("no space")):
        model_scenes.compile_model()
