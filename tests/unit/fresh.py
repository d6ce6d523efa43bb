"""A process that has made and read nothing yet, without starting one."""

from __future__ import annotations

from safecache.code import gate, triton_place
from safecache.tiers import fallback, levels


def forget_kernels() -> None:
    """What this process knows of Triton's files."""
    gate._known.clear()
    gate._judged.clear()
    triton_place.forget()
    triton_place.forget_written()


def forget_levels(monkeypatch) -> None:
    """Which local levels there are, and what failed."""
    known = [(levels, "_levels"), (levels, "_left_until")]
    for module, name in (*known, *((fallback, name) for name in ("_good_until", "_bad_until", "_faults"))):
        monkeypatch.setattr(module, name, {})
