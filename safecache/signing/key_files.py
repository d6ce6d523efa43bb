"""Key files: their encoding, reads that require that nobody else could have written them, and atomic writes."""

from __future__ import annotations

import base64
import binascii
import contextlib
import errno
import json
import os
import re
import secrets
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from safecache.errors import KeyringError
from safecache.fs import opening, ownership
from safecache.settings import units
from safecache.signing import keys
from safecache.signing.keys import ANY_NAMESPACE, ID_SIZE, MAC_SIZE, Algorithm, Key

__all__ = [
    "FORMAT",
    "check_owner",
    "check_path",
    "decode",
    "encode",
    "read",
    "recognise",
    "replace",
    "save",
    "write_new",
]

FORMAT = 1
_MATERIAL = ("secret", "public", "private")
_TIMES = ("created", "expires", "revoked")
_FIELDS = frozenset(("format", "id", "algorithm", "name", "revoked_reason", "namespaces", *_TIMES, *_MATERIAL))
_PARTS = {Algorithm.HMAC_SHA256: ("secret",), Algorithm.ED25519: ("public", "private")}
_MINIMUM_RAW = 32
_HEX_SECRET = re.compile(rb"[0-9a-fA-F]{64}\s*")
# Public keys in other formats: OpenSSH's, and the DER inside a PEM file.
_PUBLIC_STARTS = ("ssh-", "ecdsa-", "sk-", "---- BEGIN SSH2")
_PUBLIC_DER = bytes.fromhex("302a300506032b6570")
_PEM = "-----BEGIN"


def encode(key: Key) -> bytes:
    """Return the content of a key file for ``key``: its secret or private part if it has one, else its public part."""
    material: dict[str, str] = {}
    if key.can_seal:
        name = "private" if key.algorithm is Algorithm.ED25519 else "secret"
        material[name] = base64.b64encode(key.secret).decode()
    elif key.public:
        material["public"] = base64.b64encode(key.public).decode()
    fields = {
        "format": FORMAT,
        "id": key.id.hex(),
        "algorithm": key.algorithm.value,
        **material,
        "name": key.name,
        "created": _write_time(key.created),
        "expires": _write_time(key.expires),
        "revoked": _write_time(key.revoked),
        "namespaces": list(key.namespaces),
        **({"revoked_reason": key.why_revoked} if key.why_revoked else {}),
    }
    return json.dumps(fields, indent=1).encode() + b"\n"


def recognise(content: bytes, *, any_secret: bool) -> Key:
    """Return the key in ``content``: a key file, PEM, or a raw secret.

    With ``any_secret``, a raw secret is any content of 32 bytes or more. Otherwise it is 64 hex digits, so that no text
    file is mistaken for a key. Raises KeyringError.
    """
    text = _decode_text(content)
    # Text may precede the PEM block, as in the output of `openssl pkey -text`.
    if _PEM in text or _PEM.encode() in content:
        return Key.make_ed25519(*keys.read_pem(content))
    if text.startswith("{"):
        return decode(content)
    # A public key must never become a MAC secret.
    if text.startswith(_PUBLIC_STARTS) or content.startswith(_PUBLIC_DER):
        raise KeyringError("is a public key, and not in a form that safecache reads: use PEM")
    if any_secret and len(content) < _MINIMUM_RAW:
        raise KeyringError(f"holds {len(content)} bytes; it needs at least {_MINIMUM_RAW}")
    if not any_secret and not _HEX_SECRET.fullmatch(content):
        raise KeyringError("is no key file, no PEM file of an Ed25519 key and no secret of 64 hex digits")
    # A trailing newline, as editors add it, does not make another key.
    return Key.derive(content.rstrip(b"\r\n"))


def _decode_text(content: bytes) -> str:
    """Return ``content`` as text, without a byte order mark and surrounding whitespace; empty if it is not text.

    A raw secret may begin with a brace like any other byte, but 32 random bytes are never text.
    """
    coding = json.detect_encoding(content)
    # UTF-16 and UTF-32 are recognised by the first bytes; an error further on does not make the file binary.
    errors = "strict" if coding.startswith("utf-8") else "replace"
    try:
        return content.decode(coding, errors).strip()
    except UnicodeDecodeError:
        return ""


def decode(content: bytes) -> Key:
    """Return the key in a key file. Raises KeyringError, also if the stated id is not that of the key.

    Unknown fields are refused: one could be a restriction with its name misspelt.
    """
    try:
        fields = json.loads(content, object_pairs_hook=_collect_fields)
    except (ValueError, RecursionError):
        raise KeyringError("is not a JSON file, or not a whole one") from None
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise KeyringError(f"is no key file of format {FORMAT}")
    if not fields.keys() <= _FIELDS:
        # As ascii(): whoever wrote the file chose the names, and they end up in a log or on a terminal.
        raise KeyringError(f"has fields that are not known: {', '.join(map(ascii, sorted(fields.keys() - _FIELDS)))}")
    stated_id = fields.get("id")
    if not isinstance(stated_id, str) or not re.fullmatch(f"[0-9a-f]{{{2 * ID_SIZE}}}", stated_id):
        raise KeyringError(f"has an id that is not {2 * ID_SIZE} hex digits")
    stated = bytes.fromhex(stated_id)
    revoked = _read_time(fields, "revoked")
    key = _read_material(fields, stated, revoked is not None)
    if key.id != stated:
        raise KeyringError(f"says that it is key {stated.hex()}, and its content is that of key {key.id.hex()}")
    return key._replace(
        name=_read_text(fields, "name"),
        created=_read_time(fields, "created"),
        expires=_read_time(fields, "expires"),
        revoked=revoked,
        why_revoked=_read_text(fields, "revoked_reason"),
        namespaces=_read_namespaces(fields),
    )


def _collect_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the fields as a dict. Raises KeyringError for a repeated name: JSON parsers disagree which one counts."""
    twice = [name for name, number in Counter(name for name, _ in pairs).items() if number > 1]
    if twice:
        raise KeyringError(f"has fields that it states more than once: {', '.join(map(ascii, sorted(twice)))}")
    return dict(pairs)


def _read_material(fields: Mapping[str, Any], stated: bytes, revoked: bool) -> Key:
    try:
        algorithm = Algorithm(fields.get("algorithm"))
    except ValueError:
        raise KeyringError(
            f"has an algorithm that is none of {', '.join(known.value for known in Algorithm)}"
        ) from None
    present = [name for name in _MATERIAL if name in fields]
    if revoked and not present:
        return Key(stated, b"", algorithm)
    if len(present) != 1 or present[0] not in _PARTS[algorithm]:
        raise KeyringError(f"does not hold one of what {algorithm.value} needs: {', '.join(_PARTS[algorithm])}")
    material = _read_bytes(fields, present[0])
    if algorithm is Algorithm.HMAC_SHA256:
        return Key.make_mac(material)
    # A public key needs the library only once it verifies something, and importing it is not cheap.
    missing = None if present[0] == "public" and keys.is_installed() else keys.find_problem()
    if missing is not None and revoked:
        return Key(stated, b"", algorithm)
    if missing is not None:
        raise KeyringError(f"cannot be used: {missing}")
    return (
        Key.make_ed25519(material)
        if present[0] == "public"
        else Key.make_ed25519(keys.derive_public(material), material)
    )


def _read_bytes(fields: Mapping[str, Any], name: str) -> bytes:
    text = fields[name]
    try:
        material = base64.b64decode(text, validate=True) if isinstance(text, str) else b""
    except (ValueError, binascii.Error):
        material = b""
    if len(material) != MAC_SIZE:  # keys.SIZE is the same
        raise KeyringError(f"has a {name} part that is not the base64 of {MAC_SIZE} bytes")
    return material


def _read_text(fields: Mapping[str, Any], name: str) -> str:
    text = fields.get(name, "")
    if not isinstance(text, str):
        raise KeyringError(f"has a {name} that is not a text")
    return text


def _read_namespaces(fields: Mapping[str, Any]) -> tuple[str, ...]:
    patterns = fields.get("namespaces", list(ANY_NAMESPACE))
    if not isinstance(patterns, list) or not all(isinstance(pattern, str) and pattern for pattern in patterns):
        raise KeyringError("has namespaces that are not a list of patterns")
    return tuple(patterns)


def _read_time(fields: Mapping[str, Any], name: str) -> float | None:
    text = fields.get(name)
    if text is None:
        return None
    try:
        if not isinstance(text, str):
            raise ValueError(text)
        seconds = units.parse_time(text)
        units.write_time(seconds)  # the end of 9999 in another time zone is out of range in UTC
        return seconds
    except (ValueError, OverflowError):
        raise KeyringError(f"has a time {name} that is not one of RFC 3339, such as 2030-01-31T00:00:00Z") from None


def _write_time(seconds: float | None) -> str | None:
    return None if seconds is None else units.write_time(seconds)


_MAXIMUM_SIZE = 64 * 1024
_NO_HARD_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_WRITABLE = 0o022
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def read(path: str, *, forbidden: int, any_secret: bool = False) -> Key:
    """Return the key in the file at ``path``, following links, as mounted secrets are links.

    ``forbidden``: the mode bits that a file with a secret must not have; other files must only not be writable by
    others. ``any_secret``: see recognise(). Raises KeyringError, naming the file, also if others could replace it;
    OSError if it cannot be read.
    """
    found: list[os.stat_result] = []

    def check(status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode):
            raise KeyringError(f"the key {path} is not a regular file")
        check_owner(status, path, forbidden=forbidden if status.st_mode & _WRITABLE else 0)
        found.append(status)

    content = opening.read_regular(path, check, limit=_MAXIMUM_SIZE)
    check_path(path)
    try:
        key = recognise(content, any_secret=any_secret)
    except KeyringError as error:
        raise KeyringError(f"the key {path} {error}") from None
    if key.can_seal:
        check_owner(found[0], path, forbidden=forbidden)
    return key


def check_owner(status: os.stat_result, path: str, *, forbidden: int) -> None:
    """Raise KeyringError if the file belongs to neither this user nor root, or has a mode bit of ``forbidden``."""
    if not ownership.is_own_uid(status.st_uid):
        owner = ownership.name_owner(status.st_uid)
        raise KeyringError(f"{path} belongs to {owner}, not to this user (uid {os.geteuid()}) or root")
    mode = stat.S_IMODE(status.st_mode)
    if mode & forbidden:
        raise KeyringError(
            f"{path} has mode {mode:04o}, open to other users: chmod {mode & ~forbidden:04o}, or for a mounted "
            f"secret set its mode (defaultMode: 0440 in Kubernetes, mode: 0440 in Compose)"
        )


def check_path(path: str) -> None:
    """Raise KeyringError if others could replace the file: by a directory or link on the way, or by its own mode.

    For an attack, an older file of the same owner is enough: one from before a revocation, or one given away.
    """
    if ownership.find_exposure(path) is None:
        return
    # Only now, as it may query a directory server. Where every user has a group, their files are writable by it.
    objection = ownership.find_exposure(path, group=ownership.find_own_group())
    if objection is not None:
        raise KeyringError(f"others could exchange {path}: {objection}")


def save(path: str, key: Key) -> None:
    """Write ``key`` to a new file, readable by others only if public. Raises KeyringError if it exists; OSError."""
    if not write_new(path, encode(key), _choose_mode(key)):
        raise KeyringError(f"{path} exists already, and is left as it is")


def replace(path: str, key: Key) -> None:
    """Replace the key file at ``path`` by one for ``key``. Raises OSError, leaving the old file in place."""
    with _write_temporary(path, encode(key), _choose_mode(key)) as temporary:
        os.rename(temporary, path)


def _choose_mode(key: Key) -> int:
    return 0o600 if key.can_seal else 0o644


def write_new(path: str, content: bytes, mode: int) -> bool:
    """Publish ``content`` at ``path`` unless another process was first; return whether this one was. Raises OSError."""
    with _write_temporary(path, content, mode) as temporary:
        return _publish_new(temporary, path)


@contextlib.contextmanager
def _write_temporary(path: str, content: bytes, mode: int) -> Iterator[str]:
    """Write ``content`` to a synced file beside ``path``, and yield its path; removed afterwards unless renamed."""
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
    # link() fails where rename() would overwrite: of a hundred processes exactly one publishes, and a whole file.
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        # Imported here, since that takes as long as all the rest of an activation.
        import filelock

        with filelock.FileLock(path + ".lock", timeout=10):
            if os.path.exists(path):
                return False
            os.rename(temporary, path)
    return True
