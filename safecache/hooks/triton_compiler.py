"""triton.compiler.compiler: kernels that are made of what was just compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from safecache.code import triton_place

__all__ = ["init"]


def init(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """CompiledKernel.__init__, which reads the files of a group by name."""

    def make(src: Any, metadata_group: Mapping[str, str], hash: str) -> None:
        triton_place.read_by(lambda group: wrapped(src, group, hash), metadata_group)

    make(*args, **kwargs)
