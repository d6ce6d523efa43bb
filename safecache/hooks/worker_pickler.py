"""Imported by name in Inductor's compile workers: importing it is what activates safecache there."""

from __future__ import annotations

from torch._inductor.compile_worker.subproc_pool import SubprocPickler

from safecache import activation, compile_workers, config, exposure, rescue

__all__ = ["WorkerPickler"]


class WorkerPickler(SubprocPickler):  # type: ignore[misc]
    """Pickles jobs exactly as torch's own."""


# Not where the pool is made: that process imports this too.
if compile_workers.is_one():
    # Where torch's source is patched, that has imported the package before, which activates nothing.
    if config.current().enabled:
        activation.activate()
    exposure.leave_to_parent()
    rescue.leave_to_parent()
