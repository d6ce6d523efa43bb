"""Scenes that compare what we say lookups came to with what torch counts."""

from __future__ import annotations

from unittest import mock

import scenes
import torch
from torch._dynamo.utils import counters
from torch._functorch import config as functorch_config
from torch._inductor import config as inductor_config

from safecache import lookups

COUNTED = ("hit", "miss", "bypass")


def looked_up(how="compile_model", **arguments):
    """What the lookups of a scene came to, and what torch has counted; an error counts too."""
    counters.clear()
    said = ""
    try:
        globals().get(how, getattr(scenes, how, None))(**arguments)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    aot, fx = counters["aot_autograd"], counters["inductor"]
    return {
        "lookups": lookups.counts(),
        "torch": {
            "aot": {name: aot[f"autograd_cache_{name}"] for name in COUNTED},
            "fx": {name: fx[f"fxgraph_cache_{name}"] for name in COUNTED},
        },
        "error": said,
    }


def compile_with_a_pass():
    """With one that has no name in the key: torch caches nothing then."""
    with inductor_config.patch(post_grad_custom_post_pass=lambda graph: None):
        scenes.compile_model()


def compile_without_caches(inductor=None, functorch=None):
    with inductor_config.patch(inductor or {}), functorch_config.patch(functorch or {}):
        scenes.compile_model()


def compile_for_size(size):
    """A graph that is the same for all sizes, under a guard that is not."""

    def double(x):
        if x.shape[0] > 10:
            pass
        return x * 2

    with torch.no_grad():
        torch.compile(double, dynamic=True)(torch.ones(size))


def compile_strictly():
    scenes.compile_model(strict_autograd_cache=True)


def kernels_looked_up(**knobs):
    """What the lookups of a kernel came to."""
    import triton
    from kernel_scenes import compile_kernel

    with triton.knobs.compilation.scope():
        for name, value in knobs.items():
            setattr(triton.knobs.compilation, name, value)
        compiled = compile_kernel()["compiled"]
    return {"lookups": lookups.counts(), "compiled": compiled}


def compile_where_another_rank_missed():
    """As with a process group of two, of which the other has nothing in its cache."""
    from torch._functorch._aot_autograd import autograd_cache

    with (
        functorch_config.patch(_sync_cache_decision_cross_ranks=True),
        mock.patch.object(autograd_cache, "sync_cache_decision_cross_ranks", lambda hit: False),
    ):
        scenes.compile_model()


def compile_where_code_cannot_be_loaded():
    """Torch takes it for a miss if what it generates of an entry cannot be written, or read."""
    from torch._inductor.output_code import CompiledFxGraph

    with mock.patch.object(CompiledFxGraph, "after_deserialization", side_effect=OSError("no space")):
        scenes.compile_model()
