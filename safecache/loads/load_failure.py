"""A shared object that cannot be loaded since its file system is mounted noexec: which, where, and what to do."""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from collections.abc import Callable
from typing import Any

from safecache.files import mounts
from safecache.settings import config

__all__ = ["REFUSED", "advice", "explain", "explained", "is_explained", "substitute"]

# As the dynamic loader words it, behind the path; with EPERM, but that is not told.
REFUSED = "failed to map segment from shared object"
_LEAD = "safecache: the file lies"
# In our words, and in those of a source that has the patch noexec-guidance.
_NOEXEC = "is mounted noexec: no code can be loaded from there."
# AOTInductor's loader puts "Error in dlopen: " before the path.
_PATH = re.compile(rf"(/[^\n:]+): {REFUSED}")


def explain(wrapped: Callable[..., Any], args: Any, kwargs: Any, variable: str | None) -> Any:
    """Call ``wrapped``; a load that a noexec mount refused raises its error with an explanation, any other its own.

    ``variable`` is what moves this cache; None if nothing does.
    """
    try:
        return wrapped(*args, **kwargs)
    except Exception as error:
        better = explained(error, variable)
        if better is None:
            raise
        raise better from error


def explained(error: BaseException, variable: str | None) -> BaseException | None:
    """The same type of error with an explanation, if ``error`` came from a noexec mount; None if it did not."""
    if is_explained(error):
        return None
    # torch.ops.load_library keeps the loader's words in the cause.
    named = _PATH.search(str(error)) or _PATH.search(str(error.__cause__))
    if named is None or not mounts.forbids_execution(named[1]):
        return None
    return _like(error, f"{named[1]}: {REFUSED}. {_LEAD}{advice(named[1], variable)}")


def is_explained(error: BaseException) -> bool:
    """Whether the error is one that ``explained`` has made, or a patched source."""
    return _NOEXEC in str(error)


def advice(path: str, variable: str | None) -> str:
    """On which mount ``path`` lies, and what moves it to a directory of this machine that code can be loaded from."""
    mount = mounts.mount_of(path)
    where = f" on {mount}" if mount else ""
    said = f"{where}, and that {_NOEXEC}"
    if variable is None:
        point = mount.point if mount else os.path.dirname(path)
        return f"{said} This release of torch cannot be told another place: mount -o remount,exec {point}"
    found = substitute(variable)
    if found is None:
        return f"{said} Let {variable} name a directory on a file system that is not; none was found on this machine."
    return f"{said} Code can be loaded from {found[0]}: {found[1]}"


def substitute(variable: str) -> tuple[str, str] | None:
    """A directory of this machine that can be written to and code loaded from, tried; and a line to paste.

    With that ``variable`` names a place there.
    """
    directory = mounts.find_executable_directory(_candidates())
    if directory is None:
        return None
    # Below a directory that others may write to as well, a name of our own; what TMPDIR names must be there already.
    place = directory if variable == "TMPDIR" else os.path.join(directory, f"{variable.lower()}-{os.getuid()}")
    return directory, f"export {variable}={shlex.quote(place)}"


def _candidates() -> list[str]:
    environment = config.child_environment()
    home = environment.get("HOME", "")
    cache = environment.get("XDG_CACHE_HOME") or (os.path.join(home, ".cache") if home else "")
    return [path for path in (cache, home, "/var/tmp", _temporary(), os.getcwd()) if path]


def _temporary() -> str:
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        return ""  # none can be written to


def _like(error: BaseException, text: str) -> BaseException | None:
    """An error of the same type, for whoever catches that; None if it cannot be made from a text."""
    try:
        new = type(error)(text)
    except Exception:
        return None
    if isinstance(error, ImportError) and isinstance(new, ImportError):
        new.name, new.path = error.name, error.path
    return new
