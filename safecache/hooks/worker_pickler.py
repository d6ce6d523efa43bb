"""Imported by name in Inductor's compile workers: importing it is what activates safecache there."""

from __future__ import annotations

from torch._inductor.compile_worker.subproc_pool import SubprocPickler

__all__ = ["WorkerPickler"]


class WorkerPickler(SubprocPickler):  # type: ignore[misc]
    """Pickles jobs exactly as torch's own."""
