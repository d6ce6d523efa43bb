"""Processes that the kernel kills for lack of memory, in a cgroup that has little of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

__all__ = ["FILL", "little_memory"]

# What a process does to be killed, with os imported; LITTLE_MEMORY names the group.
FILL = """
with open(os.path.join(os.environ["LITTLE_MEMORY"], "cgroup.procs"), "w") as file:
    file.write(str(os.getpid()))
held = []
while True:
    held.append(bytearray(b"x") * (1 << 20))
"""
_BYTES = 256 << 20


@contextmanager
def little_memory() -> Iterator[dict[str, str]]:
    """The environment that FILL takes; the test is skipped where there can be no such group."""
    first = Path("/sys/fs/cgroup/memory")
    path = (first if first.is_dir() else first.parent) / f"safecache-tests-{os.getpid()}"
    try:
        path.mkdir()
    except OSError:
        pytest.skip("no cgroup with little memory can be made here")
    try:
        limit = next((path / name for name in ("memory.limit_in_bytes", "memory.max") if (path / name).exists()), None)
        if limit is None:
            pytest.skip("cgroups have no limit of memory here")
        limit.write_text(str(_BYTES))
        swap = path / "memory.swap.max"
        if swap.exists():
            swap.write_text("0")
        yield {"LITTLE_MEMORY": str(path)}
    finally:
        path.rmdir()
