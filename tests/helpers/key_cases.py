"""Keys of both algorithms, and ways to put them where a process looks for them."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

from safecache.settings import config
from safecache.signing import key_files, keys
from safecache.signing.keys import Key

HOUR = 3600.0
MAC = Key.derive(b"a MAC key that the tests know...")
PRIVATE = Key.make_ed25519(keys.derive_public(bytes(range(32))), bytes(range(32)))
PUBLIC = PRIVATE.extract_public()
BOTH = pytest.mark.parametrize("key", [MAC, PRIVATE], ids=["mac", "ed25519"])


def directory() -> Path:
    """The keyring directory of the settings, made."""
    settings = config.current()
    path = Path(settings.keyring or os.path.join(settings.config_home, "safecache", "keys"))
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.parent.chmod(0o700)
    return path


def put(key: Key, *, name: str = "", mode: int | None = None, **changes: object) -> Path:
    """The key's file in the keyring directory, with fields changed after the fact."""
    path = directory() / (name or f"{key.id.hex()}.json")
    fields = json.loads(key_files.encode(key)) | changes
    path.write_text(json.dumps({name: value for name, value in fields.items() if value != "absent"}))
    path.chmod(mode if mode is not None else 0o600 if key.can_seal else 0o644)
    return path


def expired(key: Key) -> Key:
    return key._replace(expires=time.time() - HOUR)


def revoked(key: Key) -> Key:
    return key._replace(revoked=time.time() - HOUR, why_revoked="the laptop was lost")


def forget_cryptography(monkeypatch) -> None:
    """As where the library is not installed."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "cryptography"] + ["cryptography"]:
        monkeypatch.setitem(sys.modules, name, None)
