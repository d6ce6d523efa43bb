"""Triton's knobs as they are set in Python travel as values; what the environment sets, the environment carries."""

from __future__ import annotations

from typing import Any

from triton import knobs

__all__ = ["apply", "current", "hindrance"]

# Of use only in the process that launches, or that holds the cache.
_OF_THE_PARENT = {
    "listener",
    "impl",
    "manager_class",
    "remote_manager_class",
    "jit_cache_hook",
    "jit_post_compile_hook",
}
_PLAIN = (bool, int, str)


def current() -> dict[str, dict[str, Any]]:
    """The values by group and knob."""
    return {group: _plain(values) for group, values in _groups().items()}


def hindrance() -> str | None:
    """The knob that keeps every compile in this process, in words; None if there is none."""
    if knobs.runtime.interpret:
        return "TRITON_INTERPRET has kernels interpreted"
    if knobs.compilation.use_ir_loc:
        return "USE_IR_LOC names files in the cache, which a worker does not have"
    if getattr(knobs.runtime, "add_stages_inspection_hook", None) is not None:
        return "triton.knobs.runtime.add_stages_inspection_hook changes the stages of a compile by a function of Python"
    for group, values in _groups().items():
        for name, value in vars(values).items():
            if value is not None and not isinstance(value, _PLAIN) and name not in _OF_THE_PARENT:
                return f"triton.knobs.{group}.{name} is set to a {type(value).__name__}"
    return None


def apply(values: dict[str, dict[str, Any]]) -> None:
    """Set these, and no others, in a worker."""
    for group, target in _groups().items():
        vars(target).clear()
        # Not by assignment, which sets variables of the environment.
        vars(target).update(values.get(group, {}))


def _groups() -> dict[str, Any]:
    return {name: value for name, value in vars(knobs).items() if isinstance(value, knobs.base_knobs)}


def _plain(group: Any) -> dict[str, Any]:
    # Some are read from the environment once, when Triton is imported; a worker's Triton can be older than ours.
    own = {**_read_at_import(type(group)), **vars(group)}
    return {name: value for name, value in own.items() if value is None or isinstance(value, _PLAIN)}


def _read_at_import(kind: type) -> dict[str, Any]:
    return {name: value for name, value in vars(kind).items() if isinstance(value, _PLAIN) and name[0] != "_"}
