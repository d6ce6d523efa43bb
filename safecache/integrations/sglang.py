"""SGLang's own: a table beside its artifacts, as vLLM has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from safecache.integrations import vllm
from safecache.patching.hook import BUILTIN_OPEN, verifier

__all__ = ["open_file"]


@verifier(
    "sglang.srt.compilation.backend:open",
    BUILTIN_OPEN,
    why="SGLang trusts whatever table of artifacts it finds, and a full disk while it writes one ends the engine.",
    issue="https://github.com/vllm-project/vllm/pull/38920",
)
def open_file(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """open, as the backend knows it: its table of artifacts is verified, and a full disk does not end the engine."""
    return vllm.open_file(wrapped, instance, args, kwargs)
