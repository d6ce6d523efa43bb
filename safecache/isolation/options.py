"""The options of a backend as they were parsed, made again in another process."""

from __future__ import annotations

from typing import Any

__all__ = ["rebuild"]


def rebuild(backend: Any, fields: dict[str, Any]) -> Any:
    """As ``backend.parse_options`` has made them, who would fill in what the environment of this process says."""
    # With a value for what Triton 3.9 warns about if it is not given.
    kind = type(backend.parse_options({"enable_fp_fusion": False}))
    options = object.__new__(kind)
    vars(options).update(fields)
    return options
