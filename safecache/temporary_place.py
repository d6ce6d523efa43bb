"""Where compilers keep their own files while they run, where TMPDIR has no room for them."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress

from safecache import config, directory_faults, events, private_directory
from safecache.reasons import Reason

__all__ = ["instead"]

_places: dict[int, str] = {}


def instead() -> str | None:
    """A private directory to use in place of the temporary one, if that cannot be used, which is said; None if it can.

    Raises CacheWriteError in strict mode.
    """
    # Unlike Python, a compiler does not try whether there is room.
    named = config.child_environment().get("TMPDIR", "")
    directory = named if os.path.isdir(named) else tempfile.gettempdir()
    against = directory_faults.probe(directory)
    if against is None:
        return None
    message = f"the temporary directory cannot be used: {against}."
    remedy = "Compilers use another one for now; make room there, or let TMPDIR name one that has it."
    events.report(Reason.UNUSABLE_DIRECTORY, message, cause=directory, remedy=remedy)
    with suppress(OSError):  # what the compiler said is raised then
        if os.getpid() not in _places:
            _places[os.getpid()] = private_directory.lasting(lambda path: directory_faults.probe(path) is None)
    return _places.get(os.getpid())
