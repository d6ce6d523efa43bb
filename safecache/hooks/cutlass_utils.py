"""torch._inductor.codegen.cutlass: what its generators are imported through, and what they propose."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

from safecache.files import private_directory

__all__ = ["fetch_ops", "try_import_cutlass"]


def fetch_ops(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """maybe_fetch_ops: operations from a JSON file of the cache, of which the text of CUDA sources is made.

    No torch that is released writes one, so nothing could attest it: the operations are generated, as without one.
    """
    module = sys.modules["torch._inductor.codegen.cutlass.cache"]
    with mock.patch.object(module, "cache_dir", lambda: os.devnull):  # where no file can be
        return wrapped(*args, **kwargs)


def try_import_cutlass(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """try_import_cutlass: puts a directory of the cache on sys.path, for good, for some links that it makes there.

    It makes them in this process's private directory instead: whoever can write to the cache could else add modules.
    """
    module = sys.modules["torch._inductor.codegen.cutlass.utils"]
    with mock.patch.object(module, "cache_dir", private_directory.of_process):
        return wrapped(*args, **kwargs)
