"""safecache makes the compile caches under torch.compile safe to rely on in production.

``import safecache`` turns it on, unless ``SAFECACHE=0``. It imports neither torch nor triton.
"""

from __future__ import annotations

import sys

from safecache import features
from safecache._version import __version__
from safecache.patching.activation import activate, deactivate, is_active, status
from safecache.session import reset
from safecache.settings import config

# Not imported from typing, which would take half the time of `import safecache`.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from safecache.upkeep.warming import Warmed

__all__ = ["__version__", "activate", "deactivate", "is_active", "isolate", "reset", "stats", "status", "warm"]


features.declare()


def stats() -> dict[str, int]:
    """Return how often entries were sealed, saved, verified, refused and so on in this process; absent means never.

    Lookups are counted by cache, outcome and reason, such as "fx miss: never seen".
    """
    from safecache.ports import plugs

    return plugs.stats()


def isolate() -> None:
    """Compile Triton's kernels in separate processes from now on, as with SAFECACHE_ISOLATE=1 in the environment.

    A crash, a hang or out-of-memory of Triton's compiler then raises TritonCompileCrash (safecache.errors). Raises
    ConfigError.
    """
    config.isolate()


def warm(function: Callable[..., object] | str, *arguments: Any, processes: int = 3) -> Warmed:
    """Call ``function``, or what ``"module:name"`` names, in fresh processes until one of them compiles nothing.

    ``processes``: at most so many. The function and its ``arguments`` have to pickle. What is returned says whether all
    lookups hit, and what would still miss: ``all_hit``, ``missing``, ``status``.
    """
    from safecache.upkeep import warming

    return warming.call(function, *arguments, processes=processes)


def _is_own_command() -> bool:
    # It reports a bad setting by itself, without a traceback, and activates only where a command calls for it.
    program = sys.argv[0] if getattr(sys, "argv", None) else ""
    if program != "-m":
        return program.endswith("/safecache")
    # While `python -m safecache` looks for its module: the word behind the first option that ends in m.
    option = next(i for i, word in enumerate(sys.orig_argv) if i and word[:1] == "-" and word[-1:] == "m")
    return sys.orig_argv[option + 1 : option + 2] == ["safecache"]


def _is_quiet() -> bool:
    # An entry point of a server, which activates by itself.
    entry = sys.modules.get("safecache_entry")
    return entry is not None and entry.is_loading()


if not _is_quiet() and not _is_own_command() and config.current().enabled:
    if __spec__ is not None:
        # All names are there. Another thread that imports a target now, and with it hooks that import from this
        # package, must not wait for us, who may come to wait for it.
        __spec__._initializing = False  # type: ignore[attr-defined]
    activate()
