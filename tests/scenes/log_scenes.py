"""Scenes that look at what torch logs of a compile."""

from __future__ import annotations

import os

from safecache.reporting import events
from safecache.reporting.kinds import Reason
from scenes.model_scenes import compile_model


def compile_traced(directory):
    """compile_model in a process that was started with TORCH_TRACE, or without it."""
    import torch._logging._internal as internal

    if directory:
        os.environ["TORCH_TRACE"] = directory
    internal.LOG_TRACE_HANDLER = None
    internal._init_logs()
    return compile_model()


def report_untraceable(directory):
    """Two reports where TORCH_TRACE names no directory that can be."""
    import torch._logging._internal as internal

    os.environ["TORCH_TRACE"] = directory
    internal.LOG_TRACE_HANDLER = None
    internal._init_logs()
    for _ in range(2):
        events.report(Reason.UNSEALED, "it is not sealed")
