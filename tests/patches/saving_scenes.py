"""Scenes about saves that fail on patched torch; see model_scenes.py."""

from __future__ import annotations

import errno
import os
from unittest import mock

from scenes import model_scenes


def place_of_torch():
    """Where the process has it from."""
    import torch

    return torch.__file__


def save_after_failure(**functorch):
    """compile_model of graphs that could not be saved the first time."""
    import torch
    from torch._dynamo.utils import counters

    with model_scenes.injected("lambda", "fx"):
        model_scenes.compile_model(**functorch)
    torch._dynamo.reset()
    counters.clear()
    return model_scenes.compile_model(**functorch)


def save_to_full_disk(kind, **functorch):
    """compile_model where the disk is full when an entry of a kind is written."""
    from torch._functorch._aot_autograd import autograd_cache
    from torch._inductor import codecache

    def write(key, content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    cache = autograd_cache.AOTAutogradCache if kind == "aot" else codecache.FxGraphCache
    with mock.patch.object(cache, "_write_to_local_cache", staticmethod(write)):
        return model_scenes.compile_model(**functorch)
