"""The keyring directory: a file ``<id>.json`` for every key that is trusted or revoked."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from safecache.errors import KeyringError
from safecache.signing import key_files
from safecache.signing.keys import ID_SIZE, Key

__all__ = ["Shelf", "add", "find_default", "make_path", "read", "read_stamp"]

_SUFFIX = ".json"
_FORBIDDEN = 0o037  # mode bits of a file with a secret; its group may read it, as with secrets mounted in containers


class Shelf(NamedTuple):
    """Content of the keyring directory. ``refused``: objections to key files, by id; ``problems``: a text per bad file.

    ``broken``: why the directory as a whole cannot be trusted. It may then have held a revocation of any key.
    """

    keys: Mapping[bytes, Key] = MappingProxyType({})
    refused: Mapping[bytes, str] = MappingProxyType({})
    problems: tuple[str, ...] = ()
    broken: str = ""


def find_default(config_home: str | None) -> str | None:
    """Return the directory used if the settings name none; None for a user without a home."""
    return None if config_home is None else os.path.join(config_home, "safecache", "keys")


def read_stamp(directory: str | None) -> tuple[int, int] | None:
    """Return mtime and ctime in ns, which change if the directory's mode or list of files does; None if unknown."""
    try:
        status = os.stat(directory) if directory is not None else None
    except OSError:
        return None
    return None if status is None else (status.st_mtime_ns, status.st_ctime_ns)


def make_path(directory: str, key_id: bytes) -> str:
    """Return the path of the file of the key with this id."""
    return os.path.join(directory, key_id.hex() + _SUFFIX)


def read(directory: str, *, must_exist: bool) -> Shelf:
    """Return the keys in ``directory``; none if missing, unless it ``must_exist``. Never raises: see Shelf.broken."""
    try:
        if not must_exist and not os.path.lexists(directory):
            place = os.path.dirname(directory)
            # Others could have moved the directory away, and this user's key's revocation with it.
            if os.path.lexists(place):
                key_files.check_path(place)
            return Shelf()
        _check_directory(directory, must_exist=must_exist)
        names = sorted(name for name in os.listdir(directory) if name.endswith(_SUFFIX) and not name.startswith("."))
    except (KeyringError, OSError) as error:
        return Shelf(broken=f"the keyring {directory} cannot be used: {error}")
    keys: dict[bytes, Key] = {}
    refused: dict[bytes, str] = {}
    problems: list[str] = []
    for name in names:
        path = os.path.join(directory, name)
        named = _parse_id(name)
        try:
            if named is None:
                raise KeyringError(f"{path} is not named after the id of a key")
            keys[named] = _read_key(path, named)
        except (KeyringError, OSError) as error:
            problems.append(str(error))
            if named is not None:
                refused[named] = str(error)
    return Shelf(keys, refused, tuple(problems))


def _check_directory(directory: str, *, must_exist: bool) -> None:
    # Whoever can write to the parent of the default directory could replace that directory.
    for path in (directory,) if must_exist else (os.path.dirname(directory), directory):
        status = os.stat(path)
        if not stat.S_ISDIR(status.st_mode):
            raise KeyringError(f"{path} is not a directory")
        key_files.check_owner(status, path, forbidden=0o022)
    key_files.check_path(directory)


def _parse_id(name: str) -> bytes | None:
    try:
        named = bytes.fromhex(name[: -len(_SUFFIX)])
    except ValueError:
        return None
    return named if len(named) == ID_SIZE and named.hex() + _SUFFIX == name else None


def _read_key(path: str, named: bytes) -> Key:
    key = key_files.read(path, forbidden=_FORBIDDEN)
    if key.id != named:
        raise KeyringError(f"{path} holds key {key.id.hex()}, which is not what it is named after")
    return key


def add(directory: str, key: Key) -> str:
    """Add ``key`` to ``directory``, or merge it into its file there; return the path of the file.

    A revoked key stays revoked, and a secret or private part is kept. Raises KeyringError or OSError.
    """
    os.makedirs(os.path.dirname(directory), mode=0o700, exist_ok=True)
    if not os.path.isdir(directory):
        os.mkdir(directory, 0o700)
    _check_directory(directory, must_exist=True)
    path = make_path(directory, key.id)
    # Imported here, since that takes as long as all the rest of an activation.
    import filelock

    # Trusting a key must not overwrite a revocation that another process writes meanwhile.
    with filelock.FileLock(os.path.join(directory, ".lock"), timeout=10):
        key_files.replace(path, _merge_keys(key, _read_key(path, key.id)) if os.path.lexists(path) else key)
    return path


def _merge_keys(key: Key, old: Key) -> Key:
    revocation = old if old.revoked is not None else key
    return key._replace(
        secret=key.secret or old.secret,
        public=key.public or old.public,
        revoked=revocation.revoked,
        why_revoked=revocation.why_revoked,
    )
