"""Libraries that the engine of a remote needs: looked for without an import, so that a start can report one."""

from __future__ import annotations

from safecache.settings import config, settings

__all__ = ["find_missing", "is_directory", "is_redis", "report"]


def is_directory(url: str) -> bool:
    """Tell whether ``url`` names a directory of this host."""
    return url.partition(":")[0].lower() == "file"


def is_redis(url: str) -> bool:
    """Tell whether ``url`` names Redis or Valkey, and no object store."""
    return url.partition("://")[0].lower() in settings.REDIS


def find_missing(url: str) -> tuple[str, str] | None:
    """Return the library that ``url`` lacks and the line that installs it; None if nothing is missing."""
    extra, library = ("redis", "redis") if is_redis(url) else ("object", "obstore")
    needed = ("zstandard",) if is_directory(url) else (library, "zstandard")
    lacking = next((name for name in needed if not config.is_installed(name)), None)
    return None if lacking is None else (lacking, config.install_line(extra))


def report(url: str) -> bool:
    """Report once if ``url`` lacks a library. Return whether it does: the caller then does without the remote."""
    lacking = find_missing(url)
    if lacking is None:
        return False
    from safecache.reporting import events
    from safecache.reporting.kinds import Reason

    library, line = lacking
    text, why = f"cannot use the remote cache {settings.hide_password(url)}", f"{library} is not installed"
    events.report(Reason.REMOTE_UNAVAILABLE, text, why=why, cause=library, remedy=f"Help: {line}")
    return True
