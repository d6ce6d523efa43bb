"""What the engine of a remote needs and is not installed: looked for without importing it, so that a start can tell."""

from __future__ import annotations

from safecache.settings import config, settings

__all__ = ["is_directory", "is_redis", "missing", "report"]


def is_directory(url: str) -> bool:
    """Whether a directory of this host is at ``url``."""
    return url.partition(":")[0].lower() == "file"


def is_redis(url: str) -> bool:
    """Whether Redis or Valkey is at ``url``, and no object store."""
    return url.partition("://")[0].lower() in settings.REDIS


def missing(url: str) -> tuple[str, str] | None:
    """The library that is not installed, and the line that installs it; None if nothing is missing."""
    extra, library = ("redis", "redis") if is_redis(url) else ("object", "obstore")
    needed = ("zstandard",) if is_directory(url) else (library, "zstandard")
    lacking = next((name for name in needed if not config.is_installed(name)), None)
    return None if lacking is None else (lacking, config.install_line(extra))


def report(url: str) -> bool:
    """Whether a library is missing; if so, that is reported once, and the remote not used by this process."""
    lacking = missing(url)
    if lacking is None:
        return False
    from safecache.reporting import events
    from safecache.reporting.kinds import Reason

    library, line = lacking
    text = f"the remote cache {settings.without_password(url)} is not used: {library} is not installed."
    events.report(Reason.REMOTE_UNAVAILABLE, text, cause=library, remedy=line)
    return True
