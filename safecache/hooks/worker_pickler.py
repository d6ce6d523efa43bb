"""Imported by name in Inductor's compile workers: importing it is what activates safecache there."""

from __future__ import annotations

import os
import sys

from torch._inductor.compile_worker.subproc_pool import SubprocPickler

from safecache import exposure, rescue

__all__ = ["WorkerPickler"]


class WorkerPickler(SubprocPickler):  # type: ignore[misc]
    """Pickles jobs exactly as torch's own."""


# Not where the pool is made: that process imports this too.
if str(getattr(sys.modules["__main__"], "__file__", "")).endswith(os.path.join("compile_worker", "__main__.py")):
    exposure.leave_to_parent()
    rescue.leave_to_parent()
