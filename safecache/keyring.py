"""The keys that seal and verify entries.

The MAC key of a user is made on first use. Whoever can read it can forge entries, so a key file that others can read
is refused, like one that others can write.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import secrets
import stat
from typing import NamedTuple

from safecache import config, files
from safecache.errors import KeyringError

__all__ = ["Key", "Keyring", "current", "load"]

_MINIMUM_SIZE = 32
_MAXIMUM_SIZE = 64 * 1024
_NO_HARD_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class Key(NamedTuple):
    """A MAC key: 32 secret bytes, and the 8 bytes that name it in seals."""

    id: bytes
    secret: bytes

    @classmethod
    def derive(cls, material: bytes) -> Key:
        """The key of a key file's content."""
        secret = hashlib.sha256(b"safecache key 1\0" + material).digest()
        return cls(hashlib.sha256(b"safecache key id 1\0" + secret).digest()[:8], secret)

    def __repr__(self) -> str:
        return f"Key({self.id.hex()})"


class Keyring(NamedTuple):
    """``signing`` is None, and ``problem`` says why, where no key could be had. ``fresh``: made by this process."""

    signing: Key | None
    fresh: bool = False
    problem: str = ""

    def find(self, key_id: bytes) -> Key | None:
        """The key of that id, if we hold it."""
        return self.signing if self.signing is not None and self.signing.id == key_id else None


def current() -> Keyring:
    """The keys of this process under the settings of now. Never raises: see Keyring.problem."""
    settings = config.current()
    return _load_once(settings.key_file, settings.config_home)


@functools.lru_cache(maxsize=8)
def _load_once(key_file: str | None, config_home: str | None) -> Keyring:
    try:
        return load(key_file, config_home)
    except (KeyringError, OSError) as error:
        return Keyring(None, problem=str(error))


def load(key_file: str | None, config_home: str | None) -> Keyring:
    """The key in ``key_file`` if given, else the user's own, made now if there is none.

    Raises KeyringError or OSError where neither can be had.
    """
    if key_file is not None:
        return Keyring(_read_key(key_file, forbidden=0o027))
    if config_home is None:
        raise KeyringError("this user has no home directory to keep a key in")
    directory = os.path.join(config_home, "safecache")
    path = os.path.join(directory, "sealing.key")
    fresh = not os.path.exists(path) and _make_key(directory, path)
    _check_owner(os.stat(directory), directory, forbidden=0o022)
    return Keyring(_read_key(path, forbidden=0o077), fresh)


def _make_key(directory: str, path: str) -> bool:
    """Publish a new key at ``path`` unless another process was first; say whether it is ours."""
    os.makedirs(os.path.dirname(directory), exist_ok=True)
    try:
        os.mkdir(directory, 0o700)
    except FileExistsError:
        pass  # another process made it; its owner and mode are checked when the key is read
    temporary = os.path.join(directory, f".{secrets.token_hex(8)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32) + "\n")
            file.flush()
            os.fsync(file.fileno())
        return _publish_new(temporary, path)
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


def _read_key(path: str, *, forbidden: int) -> Key:
    def check(status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode):
            raise KeyringError(f"the key {path} is not a regular file")
        _check_owner(status, path, forbidden=forbidden)

    material = files.read_regular(path, check, limit=_MAXIMUM_SIZE)
    if len(material) < _MINIMUM_SIZE:
        raise KeyringError(f"the key {path} holds {len(material)} bytes; it needs at least {_MINIMUM_SIZE}")
    # A line in a text file and the same with an editor's newline are one key.
    return Key.derive(material.rstrip(b"\r\n"))


def _check_owner(status: os.stat_result, path: str, *, forbidden: int) -> None:
    if status.st_uid not in (os.geteuid(), 0):
        raise KeyringError(f"{path} belongs to uid {status.st_uid}, not to this user (uid {os.geteuid()}) or root")
    mode = stat.S_IMODE(status.st_mode)
    if mode & forbidden:
        raise KeyringError(
            f"{path} has mode {mode:04o}, open to other users: chmod {mode & ~forbidden:04o}, or for a mounted "
            f"secret set its mode (defaultMode: 0440 in Kubernetes, mode: 0440 in Compose)"
        )
