"""The last tiers of a lookup, packs and the remote, and where what was compiled goes.

Without packs in SAFECACHE_LOWER and without SAFECACHE_REMOTE it does nothing.

A group of files is named by its kind, its cache key, the directory that they lie in, and the cache that has their
records; one that is a single file, by its path. The rest is imported when there is a remote.
"""

from __future__ import annotations

import os

from safecache.reporting import boundary
from safecache.reporting.kinds import Kind
from safecache.settings import config

TYPE_CHECKING = False
if TYPE_CHECKING:
    from safecache.store.bundles import Bundle

__all__ = [
    "asked",
    "asked_file",
    "fill",
    "fill_file",
    "has_given",
    "is_below",
    "is_on",
    "is_sending",
    "leave_alone",
    "left_alone",
    "made",
    "made_file",
]

# Precompiled headers have 150 MB each.
_HEADERS = (".gch", ".pch")
_FEATURE, _NOT_SENT = "the remote cache", "Other hosts compile this themselves."


def is_on() -> bool:
    """Whether there is a remote."""
    return config.current().remote is not None


def is_below() -> bool:
    """Whether there is any such tier."""
    return bool(config.current().packs) or is_on()


def is_sending() -> bool:
    """Whether what this process compiles is sent. What a compile worker makes is sent with its parent's entry."""
    return is_on() and not config.current().remote_read_only and not config.is_one()


def has_given() -> bool:
    """Whether this process has had anything from such a tier."""
    if config.current().packs:
        from safecache.packs import lower

        if lower.has_given():
            return True
    if not is_on():
        return False
    from safecache.remote import exchange

    return exchange.has_given()


def left_alone() -> float:
    """For how many seconds from now this process does not read it, which has failed; 0 if it does."""
    if not is_on():
        return 0.0
    from safecache.remote import client

    remote = client.current()
    return 0.0 if remote is None else remote.left_alone()


def leave_alone(seconds: float) -> None:
    """Do not read it for so long, as another process of this program has found that it fails."""
    if is_on():
        from safecache.remote import client

        remote = client.current()
        if remote is not None:
            remote.leave_alone(seconds)


def asked(kind: Kind, key: str, directory: str, root: str) -> None:
    """Note that this group is looked up by this process."""
    if is_on():
        from safecache.remote import exchange

        with boundary.contain_errors(_FEATURE, _NOT_SENT):
            exchange.asked(_bundle(kind, key, directory, root))


def asked_file(kind: Kind, path: str, root: str, key: str = "") -> None:
    """As asked(); the group's key is ``key``, or else the path below ``root``."""
    if is_on():
        from safecache.remote import exchange

        with boundary.contain_errors(_FEATURE, _NOT_SENT):
            exchange.asked(_of_file(kind, path, root, key))


def fill(kind: Kind, key: str, directory: str, root: str) -> bool:
    """Publish this group in the cache, if a pack or the remote has it; False if not.

    What is refused is reported; strict mode raises the reason's error.
    """
    return is_below() and _fill(_bundle(kind, key, directory, root))


def fill_file(kind: Kind, path: str, root: str, key: str = "") -> bool:
    """As fill(), with a key as in asked_file()."""
    asked_file(kind, path, root, key)
    return is_below() and _fill(_of_file(kind, path, root, key))


def _fill(bundle: Bundle) -> bool:
    if config.current().packs:
        from safecache.packs import lower

        if lower.fill(bundle):
            return True
    if not is_on():
        return False
    from safecache.remote import exchange

    with boundary.contain_errors(_FEATURE, "What it has is compiled instead."):
        return exchange.fill(bundle)
    return False


def made(kind: Kind, key: str, directory: str, root: str, *, again: bool = False) -> None:
    """Have this group sent, which this process has compiled, with what it has asked for since that.

    ``again``: in place of what the remote has.
    """
    if is_sending():
        from safecache.remote import exchange

        with boundary.contain_errors(_FEATURE, _NOT_SENT):
            exchange.send(_bundle(kind, key, directory, root), again=again)


def made_file(kind: Kind, path: str, root: str, key: str = "", *, again: bool = False) -> None:
    """As made(), with a key as in asked_file(); ``again``: something was added to it."""
    if is_sending() and not path.endswith(_HEADERS):
        from safecache.remote import exchange

        with boundary.contain_errors(_FEATURE, _NOT_SENT):
            exchange.send(_of_file(kind, path, root, key), again=again)


def _bundle(kind: Kind, key: str, directory: str, root: str, only: str = "") -> Bundle:
    from safecache.store import bundles

    return bundles.Bundle(kind, key, directory, root, only)


def _of_file(kind: Kind, path: str, root: str, key: str) -> Bundle:
    directory, name = os.path.split(path)
    return _bundle(kind, key or os.path.relpath(path, root), directory, root, name)
