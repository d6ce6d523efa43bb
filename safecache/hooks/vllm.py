"""vLLM's own: its loading of compiled models, and the text files beside them, which SGLang has, too."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from safecache.code import vllm_files
from safecache.reporting import events

__all__ = ["load_model", "open_file"]


def load_model(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """_try_load_aot_compiled_fn: what strict mode raises leaves it; vLLM would log it, and compile."""
    with events.reading():
        return wrapped(*args, **kwargs)


def open_file(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """open, as the backends know it: its table of artifacts is verified, and a full disk does not end the engine."""

    def open_it(file: Any, mode: str = "r", *rest: Any, **named: Any) -> Any:
        name = os.path.basename(file) if isinstance(file, str) else ""
        if mode == "r" and name == vllm_files.TABLE:
            return vllm_files.table(file)
        if mode == "r" and name == vllm_files.UNUSED_TABLE:
            return vllm_files.empty_table()
        if mode == "w" and (name == vllm_files.TABLE or vllm_files.is_account(name)):
            return vllm_files.Written(file)
        return wrapped(file, mode, *rest, **named)

    return open_it(*args, **kwargs)
