"""The closed lists: what is cached, what can happen to it, and what is counted."""

from __future__ import annotations

from enum import Enum

__all__ = ["Count", "Kind", "Reason"]


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


class Kind(Enum):
    """What an entry is. Sealed with it, so that an entry of one cache is refused in another."""

    AOT_ENTRY = "aot_autograd"
    FX_ENTRY = "fx_graph"
    SOURCE = "source"
    NATIVE_CODE = "native_code"
    KERNEL = "kernel"
    AOT_FUNCTION = "aot_function"
    AOT_MODEL = "aot_model"
    AOT_GRAPH = "aot_graph"
    DYNAMO_PACKAGE = "dynamo_package"
    PRECOMPILED = "precompiled"
    PACKAGE = "package"
    PGO_STATE = "pgo_state"
    MEMO = "memo"
    AUTOTUNING = "autotuning"
    COMPILE_CRASH = "compile_crash"
    # Never sealed, since nothing unpickles it: here to be named when it is refused.
    OTHER = "other"

    @property
    def noun(self) -> str:
        """What to call it to a person."""
        return _NOUNS[self]


_NOUNS = {
    Kind.AOT_ENTRY: "AOTAutograd entry",
    Kind.FX_ENTRY: "FX graph entry",
    Kind.SOURCE: "generated source",
    Kind.NATIVE_CODE: "compiled code",
    Kind.KERNEL: "kernel file",
    Kind.AOT_FUNCTION: "ahead-of-time compiled function",
    Kind.AOT_MODEL: "ahead-of-time compiled model",
    Kind.AOT_GRAPH: "ahead-of-time compiled graph",
    Kind.DYNAMO_PACKAGE: "precompile entry",
    Kind.PRECOMPILED: "precompiled source and cache",
    Kind.PACKAGE: "AOTInductor package",
    Kind.PGO_STATE: "profile of dynamic shapes",
    Kind.MEMO: "memoized result",
    Kind.AUTOTUNING: "autotuning result",
    Kind.COMPILE_CRASH: "note of a crash",
    Kind.OTHER: "artifact",
}
