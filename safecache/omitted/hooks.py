"""torch.library: what custom ops are made of, which the dispatcher does not give back.

Torch imports this target early, and calls it a thousand times while it is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from safecache.omitted import operators
from safecache.patching.hook import hook

__all__ = ["note_implementation"]


@hook(
    "torch.library:Library.impl(self, op_name, fn, dispatch_key=, *with_keyset=, *allow_override=)",
    why="Torch's cache keys leave out the code of custom ops, so a changed op still hits the old graph.",
    issue="https://github.com/pytorch/pytorch/issues/160472",
)
def note_implementation(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """Library.impl: notes the function, unless it is torch's own for an op of torch."""

    def note(op_name: Any, fn: Callable[..., Any], dispatch_key: str = "", **named: Any) -> None:
        name = str(getattr(op_name, "_name", op_name))
        operators.registered(
            name if "::" in name else f"{instance.ns}::{name}", dispatch_key or instance.dispatch_key, fn
        )

    result = wrapped(*args, **kwargs)
    note(*args, **kwargs)
    return result
