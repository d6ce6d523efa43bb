"""A process that has made and read nothing yet, without starting one."""

from __future__ import annotations

from safecache import triton_place, vouching, written_files


def forget_kernels() -> None:
    """What this process knows of Triton's files."""
    vouching._known.clear()
    vouching._judged.clear()
    triton_place.forget()
    written_files.forget()
