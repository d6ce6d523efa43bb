"""The limits of a cache, kept without being asked: after a publishing, by a process of its own.

Not by a thread: it would take turns with the launches of kernels. And never on the way to a hit.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from contextlib import suppress

from safecache.fs import folders
from safecache.places import layout, metadata
from safecache.ports import Published
from safecache.reporting import events
from safecache.reporting.kinds import Reason
from safecache.session import Part, inherit
from safecache.settings import children, config
from safecache.tiers import levels

__all__ = ["keep"]

# Seconds between two sweeps of a directory, by whichever process.
_INTERVAL = 600.0

# When this process looks again.
_next: Part[dict[str, float]] = Part(dict, inherit)


def keep(published: Published) -> None:
    """Start ``safecache gc`` in the background for the cache of ``published``, if limits are set and a sweep is due.

    Each cache is swept at most every 10 minutes, by one process; the shared tier never. Failures are reported.
    """
    root = published.root
    settings = config.current()
    if settings.max_bytes is settings.max_files is settings.max_age is None:
        return
    if time.monotonic() < _next.now.get(root, 0.0) or levels.is_shared(root):
        return
    _next.now[root] = time.monotonic() + _INTERVAL
    top = layout.find_whole_cache(root, config.get_environment())
    try:
        if _claim_sweep(top):
            _start_sweep([sys.executable or "python3", "-m", "safecache", "gc", "--quiet", top])
    except (OSError, RuntimeError) as error:  # the latter while the interpreter ends
        text, why = f"cannot keep {top} within its limits", f"{type(error).__name__}: {error}"
        events.report(Reason.NOT_TRIMMED, text, why=why, cause=top, remedy="Help: run `safecache gc` regularly")


def _claim_sweep(top: str) -> bool:
    """Whether it is for this process to start the next sweep. Raises OSError."""
    with folders.open_subdirectory(top, (metadata.FOLDER,), make=True) as folder:
        try:
            if abs(time.time() - folder.get_status(metadata.STAMP).st_mtime) < _INTERVAL:
                return False
            folder.touch(metadata.STAMP)
        except FileNotFoundError:
            try:
                folder.write(metadata.STAMP, b"")
            except FileExistsError:
                return False
    return True


def _start_sweep(command: list[str]) -> None:
    environment = children.add_package(config.copy_environment()) | {"SAFECACHE": "0"}
    # A session of its own: what ends the job need not end this, which may be killed at any time.
    nothing = subprocess.DEVNULL
    process = subprocess.Popen(
        command,
        **children.make_options(environment),
        stdin=nothing,
        stdout=nothing,
        stderr=nothing,
        start_new_session=True,
    )
    with suppress(RuntimeError):  # no thread can be started while the interpreter ends, and its parent reaps then
        threading.Thread(target=process.wait, name="safecache-gc", daemon=True).start()
