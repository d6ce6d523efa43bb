"""Scenes about cache entries that refer to launchers; see model_scenes.py, whose injected() puts them there."""

from __future__ import annotations

import contextlib
from unittest import mock

from scenes import autotuners, model_scenes


@contextlib.contextmanager
def referring(place, what="launcher"):
    """Put a launcher, or the function below one, into every entry of a kind."""
    import torch

    with autotuners.driver():
        made = autotuners.compiled(configs=autotuners.CONFIGS[:1]).launchers[0]
        if what == "fast":
            with torch._inductor.config.patch(use_fast_triton_launcher=True):
                made = autotuners.compiled()._build_fast_launcher(made)
        elif what == "function":
            made = getattr(made, "func", made)
        with mock.patch.dict(model_scenes.CULPRITS, real=lambda: made), model_scenes.injected("real", place):
            yield


@contextlib.contextmanager
def watched():
    """Collects the launchers that come back from pickles, and tells after launching them what was loaded."""
    module, name = _reviver()
    revive, told = getattr(module, name), {}
    revived = []

    def collect(*state):
        revived.append(revive(*state))
        return revived[-1]

    with autotuners.driver() as driver, mock.patch.object(module, name, collect):
        yield told
        told["loaded before"] = len(driver.loaded)
        for launcher in revived:
            autotuners.launch(launcher)
        told["revived"], told["launched"] = len(revived), len(driver.launched)
        told["names"] = sorted({launcher.__qualname__.split("[")[0] for launcher in revived})


def _reviver():
    """What pickles of launchers call: safecache's, or that of torch itself, where it is patched."""
    from torch._inductor.runtime import triton_heuristics

    if hasattr(triton_heuristics, "_safecache_picklable_launchers"):
        return triton_heuristics, "_unloaded_launcher"
    from safecache import launchers

    return launchers, "revive"


def save_referring(place, what="launcher", **functorch):
    """compile_model, cold, with a launcher in its entries."""
    with referring(place, what):
        return model_scenes.compile_model(**functorch)


def hit_referring(**functorch):
    """compile_model, in a process that finds the entries; the launchers in them are launched."""
    with watched() as told:
        result = model_scenes.compile_model(**functorch)
    return {**result, **told}


def save_standalone_referring(place, path, what="launcher", functorch=None, **options):
    with referring(place, what):
        return model_scenes.standalone(save=path, functorch=functorch, **options)


def load_standalone_referring(path):
    with watched() as told:
        model_scenes.load_standalone(path)
    return told


def save_mega_cache_referring(place, path, what="launcher"):
    with referring(place, what):
        return model_scenes.save_mega_cache(path)


def load_mega_cache_referring(path):
    with watched() as told:
        result = model_scenes.load_mega_cache(path)
    return {**result, **told}


def save_aot_compiled(place, path, what="launcher"):
    """torch.compile(...).aot_compile, saved to a file."""
    import torch

    from scenes.models import scale

    x = model_scenes.inputs()[0]
    with referring(place, what), model_scenes.offering_aot_compile():
        compiled = torch.compile(scale, fullgraph=True).aot_compile(((x,), {}))
        compiled.save_compiled_function(path)
    torch.testing.assert_close(compiled(x), scale(x))


def load_aot_compiled(path):
    import torch

    from scenes.models import scale

    x = model_scenes.inputs()[0]
    with watched() as told, model_scenes.offering_aot_compile(), open(path, "rb") as file:
        torch.testing.assert_close(torch.compiler.load_compiled_function(file)(x), scale(x))
    return told
