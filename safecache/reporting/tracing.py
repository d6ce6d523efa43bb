"""Our decisions in torch's trace log (TORCH_TRACE), where tlparse shows them beside torch's own."""

from __future__ import annotations

import logging
import sys

from safecache.errors import printable

__all__ = ["artifact"]

_log = logging.getLogger("safecache")
_failed = False


def artifact(name: str, payload: dict[str, object]) -> None:
    """Write ``payload`` as JSON, under the compile that this thread is in; nothing where torch keeps no trace.

    Raises nothing: a trace that cannot be written is one warning.
    """
    global _failed
    internal = sys.modules.get("torch._logging._internal")
    handlers = getattr(getattr(internal, "trace_log", None), "handlers", ())
    # Without TORCH_TRACE torch's handler has no directory, until the first of its artifacts takes it away.
    if internal is None or not any(getattr(handler, "root_dir", None) is not None for handler in handlers):
        return
    try:
        internal.trace_structured(
            "artifact",
            metadata_fn=lambda: {"name": f"safecache_{name.replace(' ', '_')}", "encoding": "json"},
            payload_fn=lambda: payload,
            expect_trace_id=False,
        )
    except Exception as error:
        if not _failed:
            _log.warning(
                "safecache: nothing of ours is in torch's trace: %s: %s", type(error).__name__, printable(str(error))
            )
        _failed = True
