"""Scenes in which patched torch loads shared objects; see load_scenes.py."""

from __future__ import annotations

import ctypes
from unittest import mock


def refuse(path):
    """Load a library that the loader refuses to map, as where a policy forbids it."""
    from torch._inductor.codecache import DLLWrapper

    def load(path):
        raise OSError(f"{path}: failed to map segment from shared object")

    with mock.patch.object(ctypes.cdll, "LoadLibrary", load):
        return DLLWrapper(path)
