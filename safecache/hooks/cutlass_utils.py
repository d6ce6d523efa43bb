"""torch._inductor.codegen.cutlass.utils: the links through which CUTLASS's generators are imported."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

from safecache import private_directory

__all__ = ["try_import_cutlass"]


def try_import_cutlass(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """try_import_cutlass: puts a directory of the cache on sys.path, for good, for some links that it makes there.

    It makes them in this process's private directory instead: whoever can write to the cache could else add modules.
    """
    module = sys.modules["torch._inductor.codegen.cutlass.utils"]
    with mock.patch.object(module, "cache_dir", private_directory.of_process):
        return wrapped(*args, **kwargs)
