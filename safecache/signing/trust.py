"""Trust in the bytes of an entry, by their seal, name and path: whether ``SAFECACHE_TRUST`` lets them be used."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping

from safecache.fs import ownership
from safecache.places import layout
from safecache.reporting import events, report
from safecache.reporting.kinds import UNREAD, Count, Kind, Reason
from safecache.reporting.report import Refusal
from safecache.settings import config
from safecache.signing import keyring, provenance, seal

__all__ = [
    "UNATTESTED",
    "examine",
    "explain_verdict",
    "find_contradiction",
    "find_end_contradiction",
    "find_mismatch",
    "is_observed",
    "is_private",
    "judge",
    "make_unattested_refusal",
]

# Why an entry is refused that no known key has sealed, as opposed to one that is broken.
UNATTESTED = (Reason.UNSEALED, Reason.UNKNOWN_KEY)


def judge(
    content: bytes,
    kind: Kind,
    cache_key: str,
    path: str | None,
    objection: Callable[[Mapping[str, str]], Refusal | None] = lambda _: None,
) -> Refusal | None:
    """Return why ``content`` may not be unpickled as this kind of entry under this cache key; None, counted, if it may.

    ``path``: the file that it was read from; None for bytes from a remote cache or an artifact, which have no owner, so
    that only their seal can be trusted. ``objection``: called with the provenance that accepted content states; returns
    a refusal or None.
    """
    found = examine(content, kind, cache_key, path)
    if isinstance(found, Refusal):
        return found
    refusal = objection(seal.stated_provenance(content))
    if refusal is None:
        events.count(found)
    return refusal


def examine(content: bytes, kind: Kind, cache_key: str, path: str | None) -> Count | Refusal:
    """Return Count.VERIFIED or Count.ACCEPTED_PRIVATE if ``content`` may be unpickled, else the refusal; count nothing.

    ``path``: as for judge().
    """
    keys = keyring.current()
    verdict = seal.verify(content, kind, cache_key, keys.find, config.current().namespace)
    # INVARIANT: bytes are unpickled that a trusted key has sealed, or that nobody but this user could have written.
    if verdict.reason is None:
        return find_mismatch(verdict, kind) or Count.VERIFIED
    if verdict.reason not in UNATTESTED:
        return Refusal(verdict.reason, explain_verdict(verdict), _REMEDIES.get(verdict.reason, ""))
    # Torch names every entry after the hash of its content, so truncation or alteration shows even without a seal.
    if path is not None and os.path.basename(path) != layout.name_entry(content):
        return Refusal(Reason.DAMAGED, "its name is not the hash of its content")
    if path is not None and config.current().trust == "private":
        objection = ownership.find_exposure(path)
        if objection is None:
            return find_contradiction(content, kind, cache_key) or Count.ACCEPTED_PRIVATE
        remedy = f"Help: chmod -R go-w {layout.find_cache_root(path)}; the next save seals the entry"
        return Refusal(Reason.NOT_PRIVATE, f"others could have written it: {objection}", remedy)
    return make_unattested_refusal(verdict, keys, _make_remedy(path))


def is_observed(refusal: Refusal, kind: Kind, where: str) -> bool:
    """Tell whether SAFECACHE=observe has the refused entry used all the same; then report it, and seal nothing more.

    A file that is not even read, because it is no regular file or too large, is not used. ``where``: where it was
    found.
    """
    # INVARIANT: what does not verify is used only where SAFECACHE=observe says so.
    if not config.current().is_observing or refusal.reason in UNREAD:
        return False
    # INVARIANT: what this process saves from now on may contain it, and gets no seal.
    keyring.stop_sealing()
    report.observe(refusal, kind, where)
    return True


def is_private(path: str) -> bool:
    """Tell whether ``SAFECACHE_TRUST=private`` accepts the file, since nobody else could have written it."""
    return config.current().trust == "private" and ownership.find_exposure(path) is None


def find_contradiction(content: bytes, kind: Kind, cache_key: str) -> Refusal | None:
    """Return why a seal in ``content``, by any key, contradicts it; None if not. This counts in a private cache too."""
    return find_end_contradiction(
        content, len(content), lambda size: hashlib.sha256(content[:size]).digest(), kind, cache_key
    )


def find_end_contradiction(
    end: bytes, size: int, digest_of: Callable[[int], bytes], kind: Kind, cache_key: str
) -> Refusal | None:
    """Return why the seal at the ``end`` of content of ``size`` bytes contradicts it, as seal says, or None."""
    verdict = seal.compare_unverified(end, size, digest_of, kind, cache_key, config.current().namespace)
    if verdict.reason is Reason.UNSEALED:
        return None
    return find_mismatch(verdict, kind) if verdict.reason is None else Refusal(verdict.reason, explain_verdict(verdict))


def find_mismatch(verdict: seal.Verdict, kind: Kind) -> Refusal | None:
    """Return why an entry with a valid seal may not run here, by the provenance in ``verdict``; None if it may."""
    found = provenance.find_mismatch(kind, verdict.provenance or {})
    return None if found is None else Refusal(*found)


_EVIDENCE = {
    Reason.DAMAGED: "its content does not match the digest in its seal",
    Reason.BAD_SEAL: "its seal does not match: it was altered or forged",
    Reason.OTHER_KIND: "it was sealed as another kind of entry",
    Reason.OTHER_CACHE_KEY: "it was sealed for another cache key",
    Reason.UNKNOWN_FORMAT: "its seal has a format that this version of safecache does not know",
    Reason.REVOKED_KEY: "the key that sealed it is revoked",
    Reason.EXPIRED_KEY: "the key that sealed it has expired",
    Reason.OTHER_NAMESPACE: "it was sealed for another namespace than SAFECACHE_NAMESPACE",
    Reason.KEY_NOT_ALLOWED: "the key that sealed it may not supply this namespace",
}
_REMEDIES = {
    Reason.REVOKED_KEY: "Help: remove what the key sealed, which safecache verify DIR lists",
    Reason.EXPIRED_KEY: "Help: next time run safecache sign DIR with the new key before the old one expires",
    Reason.OTHER_NAMESPACE: "Help: give every namespace its own cache directory",
    Reason.KEY_NOT_ALLOWED: "Help: safecache keys trust FILE --namespace PATTERN",
    Reason.UNKNOWN_FORMAT: "Help: install the same release of safecache everywhere",
}
_TRUST_REMEDY = "Help: mount that key and set SAFECACHE_KEY_FILE, or run `safecache keys trust FILE`"
_ABOUT_KEYS = (Reason.REVOKED_KEY, Reason.EXPIRED_KEY, Reason.KEY_NOT_ALLOWED)


def explain_verdict(verdict: seal.Verdict) -> str:
    """Return the reason of a verdict as a clause for messages, with the key's id if it is about a key.

    The reason must not be one of UNATTESTED: see unattested().
    """
    text = _EVIDENCE[verdict.reason] if verdict.reason is not None else ""
    return f"{text}: {verdict.key_id.hex()}" if verdict.key_id and verdict.reason in _ABOUT_KEYS else text


def make_unattested_refusal(verdict: seal.Verdict, keys: keyring.Keyring, remedy: str) -> Refusal:
    """Return the refusal for a verdict whose reason is one of UNATTESTED."""
    if verdict.key_id is None:
        evidence = "no seal: it was written without safecache, or truncated"
        return Refusal(Reason.UNSEALED, evidence, f"Help: {remedy}" if remedy else "")
    why_not = keys.explain_refusal(verdict.key_id)
    if why_not:
        return Refusal(Reason.UNKNOWN_KEY, f"it is sealed by key {verdict.key_id.hex()}, which is not used: {why_not}")
    if keys.signing is None:
        ours = f"no key is available: {keys.problem}"
    else:
        ours = f"its own key is {keys.signing.id.hex()}" + (", generated just now" if keys.fresh else "")
    if len(keys.trusted) > 1:
        ours += f", and it trusts {len(keys.trusted)} keys in all"
    return Refusal(
        Reason.UNKNOWN_KEY,
        f"sealed by key {verdict.key_id.hex()}, which this process does not trust: {ours}",
        f"{_TRUST_REMEDY}; {remedy}" if remedy else _TRUST_REMEDY,
    )


def _make_remedy(path: str | None) -> str:
    if path is None:
        return ""
    return f"if only you could write there, run safecache adopt {layout.find_cache_root(path)}"
