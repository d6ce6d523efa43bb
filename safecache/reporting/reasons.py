"""The closed lists of what can happen to an entry."""

from __future__ import annotations

from enum import Enum

__all__ = ["Count", "Reason"]


class Reason(Enum):
    """Why an entry was refused, not read, not found, or not saved."""

    # refused: the entry is there, and is not trusted
    UNSEALED = "unsealed"
    UNKNOWN_KEY = "unknown key"
    UNKNOWN_FORMAT = "unknown format"
    DAMAGED = "damaged"
    BAD_SEAL = "bad seal"
    OTHER_KIND = "other kind"
    OTHER_CACHE_KEY = "other cache key"
    REVOKED_KEY = "revoked key"
    EXPIRED_KEY = "expired key"
    OTHER_NAMESPACE = "other namespace"
    KEY_NOT_ALLOWED = "key not allowed"
    NOT_PRIVATE = "not private"
    NOT_A_FILE = "not a file"
    FOREIGN_OWNER = "foreign owner"
    TOO_LARGE = "too large"
    WRONG_TYPE = "wrong type"
    OTHER_CPU = "other CPU"
    OTHER_GPU = "other GPU"
    OTHER_BUILD = "other build"
    OUTDATED = "outdated"
    UNSAFE_NAME = "unsafe name"
    EXPOSED_DIRECTORY = "exposed directory"
    # not read
    UNREADABLE = "unreadable"
    UNLOADABLE = "unloadable"
    REMOTE_FAILED = "remote failed"
    ENTRY_MISSING = "entry missing"
    # not found, though nothing was refused; or not looked for
    NEVER_SEEN = "never seen"
    KEY_DIFFERS = "key differs"
    EVICTED = "evicted"
    GUARD_FAILED = "guard failed"
    OTHER_RANK_MISSED = "other rank missed"
    UPSTREAM_BYPASS = "upstream bypass"
    DISABLED = "disabled"
    LOOKUP_FAILED = "lookup failed"
    # not saved
    UNPICKLABLE = "unpicklable"
    UNPREPARED = "unprepared"
    NOT_CACHEABLE = "not cacheable"
    INCOMPLETE = "incomplete"
    UNWRITABLE = "unwritable"
    UNUSABLE_DIRECTORY = "unusable directory"
    LOCK_HELD = "lock held"
    # not loaded as code
    NOT_EXECUTABLE = "not executable"
    EXEC_DIR_UNUSABLE = "exec dir unusable"
    # not kept within its limits
    NOT_TRIMMED = "not trimmed"
    # keys and hooks
    NO_KEY = "no key"
    KEY_REFUSED = "key refused"
    STOOD_DOWN = "stood down"
    # compiles in processes of their own
    NOT_ISOLATED = "not isolated"
    CRASHED = "compile crashed"
    CRASHED_BEFORE = "crashed before"
    # told apart from other keys
    NOT_EXPLAINED = "not explained"


class Count(Enum):
    """What went well."""

    SEALED = "sealed"
    SAVED = "saved"
    VERIFIED = "verified"
    ACCEPTED_PRIVATE = "accepted as private"
    CODE_SEALED = "code sealed"
    CODE_VERIFIED = "code verified"
    QUARANTINED = "quarantined"
    ISOLATED = "compiled in isolation"
