"""Key files: read where only their owner could have written them, and written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator

from safecache import files, key_format, ownership
from safecache.errors import KeyringError
from safecache.keys import Key

__all__ = ["check_owner", "check_path", "read", "replace", "save", "write_new"]

_MAXIMUM_SIZE = 64 * 1024
_NO_HARD_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_WRITABLE = 0o022
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def read(path: str, *, forbidden: int, any_secret: bool = False) -> Key:
    """The key in the file at ``path``, or where a link there leads: mounted secrets are links.

    ``forbidden`` are the mode bits that a file with a secret must not have; one without must only not be writable by
    others. ``any_secret``: see key_format.recognise(). Raises KeyringError that names the file, also for one that
    others could exchange, or OSError.
    """
    found: list[os.stat_result] = []

    def check(status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode):
            raise KeyringError(f"the key {path} is not a regular file")
        check_owner(status, path, forbidden=forbidden if status.st_mode & _WRITABLE else 0)
        found.append(status)

    content = files.read_regular(path, check, limit=_MAXIMUM_SIZE)
    check_path(path)
    try:
        key = key_format.recognise(content, any_secret=any_secret)
    except KeyringError as error:
        raise KeyringError(f"the key {path} {error}") from None
    if key.can_seal:
        check_owner(found[0], path, forbidden=forbidden)
    return key


def check_owner(status: os.stat_result, path: str, *, forbidden: int) -> None:
    """Raises KeyringError for a file of another user than this one and root, or with a mode bit of ``forbidden``."""
    if not ownership.own_uid(status.st_uid):
        owner = ownership.name_of(status.st_uid)
        raise KeyringError(f"{path} belongs to {owner}, not to this user (uid {os.geteuid()}) or root")
    mode = stat.S_IMODE(status.st_mode)
    if mode & forbidden:
        raise KeyringError(
            f"{path} has mode {mode:04o}, open to other users: chmod {mode & ~forbidden:04o}, or for a mounted "
            f"secret set its mode (defaultMode: 0440 in Kubernetes, mode: 0440 in Compose)"
        )


def check_path(path: str) -> None:
    """Raises KeyringError if others could put something else there: by a directory or a link on the way, or the mode.

    An older file of the same owner is enough for that: one in which a key is not revoked, or one that was given away.
    """
    if ownership.why_not_private(path) is None:
        return
    # Only now, as it may ask a directory server: where every user has a group, what they make is writable by that.
    objection = ownership.why_not_private(path, group=ownership.own_group())
    if objection is not None:
        raise KeyringError(f"others could exchange {path}: {objection}")


def save(path: str, key: Key) -> None:
    """Write a new key file, with a mode that suits what it holds. Raises KeyringError where something is already."""
    if not write_new(path, key_format.encode(key), _mode_for(key)):
        raise KeyringError(f"{path} exists already, and is left as it is")


def replace(path: str, key: Key) -> None:
    """Write a key file in place of what is there. Raises OSError, with the old one left."""
    with _temporary(path, key_format.encode(key), _mode_for(key)) as temporary:
        os.rename(temporary, path)


def _mode_for(key: Key) -> int:
    return 0o600 if key.can_seal else 0o644


def write_new(path: str, content: bytes, mode: int) -> bool:
    """Publish ``content`` at ``path`` unless another process was first; say whether it is ours. Raises OSError."""
    with _temporary(path, content, mode) as temporary:
        return _publish_new(temporary, path)


@contextlib.contextmanager
def _temporary(path: str, content: bytes, mode: int) -> Iterator[str]:
    """A file with ``content`` beside ``path``, on disk for good; gone afterwards unless it was renamed."""
    temporary = os.path.join(os.path.dirname(path), f".{secrets.token_hex(8)}.tmp")
    descriptor = os.open(temporary, _CREATE, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def _publish_new(temporary: str, path: str) -> bool:
    # link() fails where rename() would overwrite: of a hundred processes exactly one publishes, whole.
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        # Here, since importing it costs as much as all of the rest of an activation.
        import filelock

        with filelock.FileLock(path + ".lock", timeout=10):
            if os.path.exists(path):
                return False
            os.rename(temporary, path)
    return True
