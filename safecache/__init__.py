"""safecache makes the compile caches under torch.compile safe to rely on in production.

``import safecache`` turns it on, unless ``SAFECACHE=0``. It imports neither torch nor triton.
"""

from __future__ import annotations

import sys

from safecache import config
from safecache._version import __version__
from safecache.activation import activate, deactivate, is_active, status

__all__ = ["__version__", "activate", "deactivate", "is_active", "stats", "status"]


def stats() -> dict[str, int]:
    """How often entries were sealed, saved, verified, refused and so on in this process; absent means never."""
    from safecache import events

    return events.counters()


def _own_command_line() -> bool:
    # It reports a bad setting by itself, without a traceback, and activates only where a command calls for it.
    program = sys.argv[0] if getattr(sys, "argv", None) else ""
    return program.endswith("/safecache") or (program == "-m" and "safecache" in sys.orig_argv)


if not _own_command_line() and config.current().enabled:
    activate()
