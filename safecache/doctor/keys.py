"""The keys that entries are sealed and verified with. Looked at, and none is made."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator, Mapping

from safecache.doctor import finding, places
from safecache.doctor.finding import Finding
from safecache.settings import config, units
from safecache.signing import keyring, signatures
from safecache.signing.keyring import Keyring
from safecache.signing.keys import Algorithm

__all__ = ["check", "has_key"]

_SOON = 14 * 86400.0


def has_key() -> bool:
    """Whether this user has a key, or names one: asking for it would not make one."""
    settings = config.current()
    own = settings.config_home and os.path.join(settings.config_home, "safecache", "sealing.key")
    return settings.key_file is not None or bool(own and os.path.lexists(own))


def check(environ: Mapping[str, str]) -> Iterator[Finding]:
    """A key that is missing, refused or about to expire, and one that lies where it should not."""
    if not has_key():
        yield from _none_yet()
        return
    ring = keyring.current(tell=False)
    if ring.signing is not None:
        yield finding.ok("key", f"Entries are sealed with key {ring.signing.id.hex()}.")
    elif "only the public part" in ring.problem:
        evidence = f"{ring.problem}: what it has sealed is used, and nothing is added."
        yield finding.info("seals-nothing", evidence)
    else:
        evidence = f"Nothing can be sealed, and so nothing is kept: {ring.problem}."
        yield finding.error("no-key", evidence, "safecache keys")
    for problem in ring.problems:
        if problem != ring.problem:
            yield finding.warning("key-refused", f"{problem}.", "safecache keys")
    yield from _expiring(ring)
    yield from _beside_cache(environ)


def _none_yet() -> Iterator[Finding]:
    home = config.current().config_home
    remedy = "export SAFECACHE_KEY_FILE=FILE  # such as a mounted secret; or XDG_CONFIG_HOME=DIR, one that is kept"
    if home is None:
        evidence = "This user has no home directory to keep a key in: nothing can be sealed, and so nothing is kept."
        yield finding.error("no-key-directory", evidence, remedy)
        return
    directory = os.path.join(home, "safecache")
    above = places.nearest(directory)
    if not os.path.isdir(above) or not os.access(above, os.W_OK | os.X_OK, effective_ids=True):
        evidence = f"A key is to be made in {directory}, and {above} cannot be written: nothing can be sealed or kept."
        yield finding.error("no-key-directory", evidence, remedy)
        return
    yield finding.info("no-key-yet", f"The first compile makes a key in {directory}.", "")


def _expiring(ring: Keyring) -> Iterator[Finding]:
    for key in [key for _, key in sorted(ring.trusted.items())]:
        left = None if key.expires is None else key.expires - time.time()
        if left is not None and 0 < left < _SOON and key.revoked is None:
            evidence = f"Key {key.id.hex()} {key.name} expires on {units.write(key.expires or 0)}: what it has "
            evidence += "sealed is refused from then on."
            remedy = "safecache sign DIR  # with the next key, once that is trusted"
            yield finding.warning("key-expires-soon", evidence, remedy)
    needs_library = any(key.algorithm is Algorithm.ED25519 and key.revoked is None for key in ring.trusted.values())
    problem = signatures.problem() if needs_library else None
    if problem:
        yield finding.error("no-cryptography", f"{problem}.", "pip install 'safecache[sign]'")


def _beside_cache(environ: Mapping[str, str]) -> Iterator[Finding]:
    path = config.current().key_file
    for place in places.caches(environ):
        if path is not None and os.path.realpath(path).startswith(os.path.join(os.path.realpath(place.path), "")):
            evidence = f"The key {path} lies in {place}: who copies the cache, or is let in there, may get the key too."
            remedy = f"mv {shlex.quote(path)} FILE; export SAFECACHE_KEY_FILE=FILE  # outside of all caches"
            yield finding.warning("key-beside-cache", evidence, remedy)
