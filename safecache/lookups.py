"""The caches that are looked up by a key."""

from __future__ import annotations

from enum import Enum

__all__ = ["Layer"]


class Layer(Enum):
    """A cache, by what its keys are of: a graph of Dynamo's, one of Inductor's, a kernel of Triton's."""

    AOT = "aot"
    FX = "fx"
    TRITON = "triton"
