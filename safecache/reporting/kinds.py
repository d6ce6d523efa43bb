"""The closed lists: what is cached, what can happen to it, and what is counted."""

from __future__ import annotations

from enum import Enum

__all__ = ["ENTRIES", "LOOKED_UP", "OF_FLIGHTS", "OF_REMOTE", "OF_VERIFICATION", "Count", "Kind", "Reason"]


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
    STALE = "stale"
    EMPTY = "empty"
    OTHER_RANK = "other rank"
    UNSAFE_NAME = "unsafe name"
    EXPOSED_DIRECTORY = "exposed directory"
    CRASHED_RUN = "crashed the process that ran it"
    FAILED_RUN = "failed in its first run"
    # not read
    UNREADABLE = "unreadable"
    UNLOADABLE = "unloadable"
    REMOTE_FAILED = "remote failed"
    REMOTE_UNAVAILABLE = "remote unavailable"
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
    FEATURE_FAILED = "feature failed"
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
    # compiled again
    DIFFERS = "compiled otherwise now"
    NOT_RECOMPILED = "not compiled again"


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
    REMOTE_HIT = "remote hit"
    REMOTE_MISS = "remote miss"
    REMOTE_SENT = "sent to the remote"
    REMOTE_UNSENT = "not sent to the remote"
    REMOTE_RECEIVED = "bytes from the remote"
    REMOTE_GIVEN = "bytes to the remote"
    # Of what a compile waits for; the microseconds are those that it has waited.
    REMOTE_ASKED = "requests to the remote"
    REMOTE_WAITED = "us waited for the remote"
    REMOTE_LEFT = "remote left alone"
    PACK_HIT = "taken from a pack"
    # Of single flights.
    LEFT_TO_OTHERS = "left to another process"
    WAITED_IN_VAIN = "waited in vain"
    # Of hits that are compiled again.
    RECOMPILED = "compiled alike again"


class Kind(Enum):
    """What lies in a cache. Its value is sealed with it, so that an entry of one cache is refused in another.

    ``noun``: what to call it to a person. ``word``: what its lookups are counted under, here and on disk, and what it
    is called in commands. ``plural``: of what lies in a cache directory and is listed and evicted in groups, what a
    group of it is called. ``cache``: of what is looked up, which cache is asked.
    """

    _value_: str
    noun: str
    word: str
    plural: str
    cache: str

    def __new__(cls, value: str, noun: str, word: str = "", plural: str = "", cache: str = "") -> Kind:
        """One whose value is ``value`` alone."""
        kind = object.__new__(cls)
        kind._value_ = value
        kind.noun, kind.word, kind.plural, kind.cache = noun, word, plural, cache
        return kind

    # Those in groups in the order of their eviction: what refers to others comes before them.
    AOT_ENTRY = "aot_autograd", "AOTAutograd entry", "aot", "AOTAutograd entries", "AOTAutograd"
    FX_ENTRY = "fx_graph", "FX graph entry", "fx", "FX graph entries", "FX graph"
    SOURCE = "source", "generated source"
    NATIVE_CODE = "native_code", "compiled code", "code", "sources and libraries"
    AUTOTUNING = "autotuning", "autotuning result", "autotune", "autotuning results"
    KERNEL = "kernel", "kernel file", "triton", "Triton kernels", "Triton"
    KNOWN_BAD = "compile_crash", "note of a crash", "known-bad", "notes of crashes"
    # A function that is looked up is counted as a model.
    AOT_FUNCTION = "aot_function", "ahead-of-time compiled function", "model"
    AOT_MODEL = "aot_model", "ahead-of-time compiled model", "model", "", "ahead of time"
    AOT_GRAPH = "aot_graph", "ahead-of-time compiled graph"
    DYNAMO_PACKAGE = "dynamo_package", "precompile entry"
    PRECOMPILED = "precompiled", "precompiled source and cache"
    PACKAGE = "package", "AOTInductor package"
    PGO_STATE = "pgo_state", "profile of dynamic shapes"
    MEMO = "memo", "memoized result"
    TABLE = "artifact_table", "vLLM's table of artifacts"
    # Never sealed as such, since nothing unpickles them: here to be named. Headers have records of compiled code.
    OTHER = "other", "artifact"
    HEADER = "header", "precompiled header", "header", "precompiled headers"
    TEMPORARY = "temporary", "temporary file", "temporary", "temporary files"
    QUARANTINE = "quarantine", "file in quarantine", "quarantine", "quarantine"
    CRASH_REPORT = "crash_report", "crash report", "crash", "crash reports"
    DIFFERENCE = "difference", "entry compiled otherwise", "difference", "entries compiled otherwise"
    JOURNAL = "journal", "journal of lookups", "journal", "journals of lookups"
    KEY_RECORD = "key_record", "record of a key", "keys", "records of keys"
    RECORD = "record", "orphaned record", "record", "orphaned records"
    LOCK = "lock", "orphaned lock", "lock", "orphaned locks"
    PACK = "pack", "pack"
    PARCEL = "parcel", "group of files in the remote cache", "remote"
    # What safecache itself notes: see signing.side_records.
    SIDE_RECORD = "side_record", "record beside a cache"


# What is counted of the remote tier.
OF_REMOTE = tuple(count for count in Count if count.name.startswith("REMOTE_"))
OF_FLIGHTS = (Count.LEFT_TO_OTHERS, Count.WAITED_IN_VAIN)
OF_VERIFICATION = (Count.RECOMPILED, Reason.DIFFERS, Reason.NOT_RECOMPILED)
# What torch keeps with its own seal, one file for each key and its guards.
ENTRIES = (Kind.AOT_ENTRY, Kind.FX_ENTRY)
# What is looked up by a key. A model is only given to torch, as a file that was compiled ahead of time.
LOOKED_UP = (Kind.AOT_ENTRY, Kind.FX_ENTRY, Kind.KERNEL, Kind.AOT_MODEL)
