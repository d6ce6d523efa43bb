"""Whether the bytes of an entry may be used: the seal, the name and the path, judged by ``SAFECACHE_TRUST``."""

from __future__ import annotations

import os
from typing import NamedTuple

from safecache import config, events, keyring, layout, ownership, seal
from safecache.reasons import Count, Reason
from safecache.seal import Kind

__all__ = ["EVIDENCE", "UNVOUCHED", "Refusal", "judge"]

# What can be said against an entry that nobody we know has sealed, as opposed to one that is broken.
UNVOUCHED = (Reason.UNSEALED, Reason.UNKNOWN_KEY)


class Refusal(NamedTuple):
    """Why an entry is not used: evidence and remedy are clauses for a person."""

    reason: Reason
    evidence: str
    remedy: str = ""


def judge(content: bytes, kind: Kind, cache_key: str, path: str | None) -> Refusal | None:
    """None if ``content`` may be unpickled as this kind of entry under this cache key.

    ``path`` is the file it was read from; None for bytes from a remote cache or an artifact, which have no owner and
    so can be trusted by their seal alone.
    """
    keys = keyring.current()
    verdict = seal.verify(content, kind, cache_key, keys.find)
    if verdict.reason is None:
        events.count(Count.VERIFIED)
        return None
    if verdict.reason not in UNVOUCHED:
        return Refusal(verdict.reason, EVIDENCE[verdict.reason])
    # Torch names every entry by the hash of its content, so a truncated or altered one shows even without a seal.
    if path is not None and os.path.basename(path) != layout.entry_name(content):
        return Refusal(Reason.DAMAGED, "its name is not the hash of its content")
    if path is not None and config.current().trust == "private":
        objection = ownership.why_not_private(path)
        if objection is None:
            events.count(Count.ACCEPTED_PRIVATE)
            return None
        return Refusal(Reason.NOT_PRIVATE, f"others could have written it: {objection}", _adopt_remedy(path))
    return _unvouched(verdict, keys, path)


EVIDENCE = {
    Reason.DAMAGED: "its digest does not match its content",
    Reason.BAD_SEAL: "its seal does not match: it was altered or forged",
    Reason.OTHER_KIND: "it was sealed as another kind of entry",
    Reason.OTHER_CACHE_KEY: "it was sealed for another cache key",
    Reason.UNKNOWN_FORMAT: "its seal has a format that this version of safecache does not know",
}


def _unvouched(verdict: seal.Verdict, keys: keyring.Keyring, path: str | None) -> Refusal:
    if verdict.key_id is None:
        return Refusal(Reason.UNSEALED, "it carries no seal, as when stock torch wrote it", _adopt_remedy(path))
    if keys.signing is None:
        ours = f"no key could be had: {keys.problem}"
    else:
        ours = f"this process holds {keys.signing.id.hex()}" + (", made just now" if keys.fresh else "")
    return Refusal(
        Reason.UNKNOWN_KEY,
        f"it is sealed by key {verdict.key_id.hex()}, and {ours}",
        f"Give this process that key with SAFECACHE_KEY_FILE. {_adopt_remedy(path)}",
    )


def _adopt_remedy(path: str | None) -> str:
    if path is None:
        return "If you trust its origin, set SAFECACHE_KEY_FILE to the key of the host that sealed it."
    return f"If nobody else could write there, seal what is there once: safecache adopt {layout.cache_root(path)}"
