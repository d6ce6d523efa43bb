"""safecache makes the compile caches under torch.compile safe to rely on in production.

``import safecache`` turns it on, unless ``SAFECACHE=0``. It imports neither torch nor triton.
"""

from __future__ import annotations

from safecache import config
from safecache._version import __version__
from safecache.activation import HookStatus, activate, deactivate, is_active, status

__all__ = ["HookStatus", "__version__", "activate", "deactivate", "is_active", "stats", "status"]


def stats() -> dict[str, int]:
    """How often entries were sealed, saved, verified, refused and so on in this process; absent means never."""
    from safecache import events

    return events.counters()


if config.current().enabled:
    activate()
