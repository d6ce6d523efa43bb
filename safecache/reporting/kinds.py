"""Closed lists: what is cached, what can happen to it, and what is counted."""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import NamedTuple

__all__ = [
    "ENTRIES",
    "LOOKED_UP",
    "OF_FLIGHTS",
    "OF_RECOMPILE_CHECK",
    "OF_REMOTE",
    "PART",
    "UNSEALED_BYTES",
    "Count",
    "Eviction",
    "Evidence",
    "Fingerprint",
    "Kind",
    "LeaseScope",
    "Reason",
    "SealedName",
    "Travel",
    "make_anchor",
]


class Reason(Enum):
    """Reason why an entry was refused, not read, not found or not saved, or why a hook or limit is not in force."""

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
    FOREIGN_OWNER = "owned by another user"
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
    EXPOSED_DIRECTORY = "directory writable by others"
    CRASHED_RUN = "crashed on first run"
    FAILED_RUN = "failed on first run"
    # not read
    UNREADABLE = "unreadable"
    UNLOADABLE = "unloadable"
    REMOTE_FAILED = "remote failed"
    REMOTE_UNAVAILABLE = "remote unavailable"
    ENTRY_MISSING = "missing entry"
    # not found, though nothing was refused; or not looked for
    NEVER_SEEN = "never seen"
    KEY_DIFFERS = "key differs"
    EVICTED = "evicted"
    GUARD_FAILED = "guard failed"
    OTHER_RANK_MISSED = "other rank missed"
    SAMPLED = "sampled"
    UPSTREAM_BYPASS = "upstream bypass"
    DISABLED = "disabled"
    LOOKUP_FAILED = "lookup failed"
    FEATURE_FAILED = "feature failed"
    # not saved
    UNPICKLABLE = "unpicklable"
    UNPREPARED = "could not prepare"
    NOT_CACHEABLE = "not cacheable"
    INCOMPLETE = "incomplete"
    UNWRITABLE = "unwritable"
    UNUSABLE_DIRECTORY = "unusable directory"
    LOCK_HELD = "lock held"
    # not loaded as code
    NOT_EXECUTABLE = "not executable"
    EXEC_DIR_UNUSABLE = "unusable exec directory"
    # not kept within its limits
    NOT_TRIMMED = "over limit"
    # keys and hooks
    NO_KEY = "no key"
    KEY_REFUSED = "key refused"
    STOOD_DOWN = "hook inactive"
    # compiles in processes of their own
    NOT_ISOLATED = "not isolated"
    CRASHED = "compile crashed"
    CRASHED_BEFORE = "known compiler crash"
    # told apart from other keys
    NOT_EXPLAINED = "key not recorded"
    # compiled again
    DIFFERS = "recompile differs"
    NOT_RECOMPILED = "not recompiled"

    @property
    def help(self) -> str:
        """Command that prints what the reason means and how to fix it."""
        return f"safecache help errors#{make_anchor(self.value)}"


def make_anchor(heading: str) -> str:
    """Return the anchor by which a link leads to the section with this heading, as GitHub makes it."""
    return "".join(each for each in heading.lower() if each.isalnum() or each in "_- ").replace(" ", "-")


# Why a file is not even read, or could not be.
UNREAD = (Reason.NOT_A_FILE, Reason.TOO_LARGE, Reason.UNREADABLE)


class Count(Enum):
    """Counters of what succeeds, of remote traffic and of waits; the values are their names in counters()."""

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
    REMOTE_SENT = "sent to remote"
    REMOTE_UNSENT = "not sent to remote"
    REMOTE_RECEIVED = "bytes from remote"
    REMOTE_GIVEN = "bytes to remote"
    # Of what a compile waits for; the microseconds are those that it has waited.
    REMOTE_ASKED = "remote requests"
    REMOTE_WAITED = "remote wait microseconds"
    REMOTE_LEFT = "remote suspended"
    PACK_HIT = "taken from a pack"
    # Of single flights.
    LEFT_TO_OTHERS = "compiled by another process"
    WAITED_IN_VAIN = "wait timed out"
    # Of hits that are compiled again.
    RECOMPILED = "recompile matches"


class Evidence(Enum):
    """Evidence that is verified before a file is used."""

    SEAL = "a seal at its end"
    RECORD = "a sealed record of its digest, which lies beside the cache"
    NOTHING = "nothing: it is neither unpickled, run nor compiled against"


class SealedName(Enum):
    """Name of a file in its seal or record."""

    KEY = "the cache key"
    NOTHING = "nothing: what it travels in says which it is"
    FILE = "the name of the file"
    FOLDER = "its directory and name"
    PATH = "its path below the cache"


class Fingerprint(Enum):
    """Scope of the fingerprint, which a seal states beyond the cache key."""

    NOTHING = "nothing"
    GRAPH = "what the graph of this key depends on"
    PROCESS = "what all graphs of the process depend on"


class Travel(Enum):
    """Unit in which files go into packs and to the remote cache."""

    NOWHERE = "not at all"
    GROUPS = "all files of a key together"
    FILES = "each file by itself"


class LeaseScope(Enum):
    """Processes that leave the compile of a missing key to one of them."""

    NONE = "none do"
    HOST = "those of a host"
    HOSTS = "those of all hosts that share a remote cache"


class Eviction(IntEnum):
    """Order in which groups are evicted: first what no compile uses, last what records that a group was evicted."""

    FIRST, BY_USE, LAST = range(3)


class Proof(NamedTuple):
    """Proof that a file needs; ``bound_to``: the parts of the build that must match."""

    evidence: Evidence
    name: SealedName
    bound_to: tuple[str, ...]
    fingerprint: Fingerprint
    max_bytes: int


class Tiers(NamedTuple):
    """Place of a kind's files in a cache, and how they travel between tiers.

    ``place``: path in a cache directory, for str.format(). ``key``: pattern of its keys, so that no path made of one
    leads out of its cache. ``is_pulled``: useful without what refers to it, so `safecache copy` fetches it from a
    remote.
    """

    place: str
    travel: Travel
    key: str
    is_pulled: bool
    lease: LeaseScope


class Upkeep(NamedTuple):
    """Upkeep of a kind. ``is_code``: running processes may have it mapped. ``is_warmed``: a warm start needs it."""

    eviction: Eviction
    is_code: bool
    is_warmed: bool


_MIB, _GIB = 1 << 20, 1 << 30
# Without a seal that holds an entry is never used, but told from one that was cut short, by its name: 10 ms at most.
UNSEALED_BYTES = 16 * _MIB
# A part of a path that leads nowhere else.
PART = r"[A-Za-z0-9_-][A-Za-z0-9._-]*"
_PATH = rf"{PART}(/{PART})*"
_BUILD = ("machine", "torch", "triton", "gpu")
_UNPROVEN = Proof(Evidence.NOTHING, SealedName.NOTHING, (), Fingerprint.NOTHING, UNSEALED_BYTES)
_STAYS = Tiers("{key}", Travel.NOWHERE, "", False, LeaseScope.NONE)
# Of what is no group of files in a cache directory.
_UNLISTED = Upkeep(Eviction.BY_USE, False, False)
_WORTHLESS = Upkeep(Eviction.FIRST, False, False)


def _need_seal(
    name: SealedName = SealedName.KEY,
    bound_to: tuple[str, ...] = _BUILD,
    fingerprint: Fingerprint = Fingerprint.NOTHING,
    max_bytes: int = UNSEALED_BYTES,
) -> Proof:
    return Proof(Evidence.SEAL, name, bound_to, fingerprint, max_bytes)


def _need_record(name: SealedName, bound_to: tuple[str, ...], max_bytes: int) -> Proof:
    return Proof(Evidence.RECORD, name, bound_to, Fingerprint.NOTHING, max_bytes)


class Kind(Enum):
    """Kind of file in a cache, with all that others need to know of it. A kind that lacks a field does not import.

    The value is sealed with the file, so that an entry of one cache is refused in another.

    ``noun``: its name in messages. ``word``: its name in counters, on disk and in commands. ``plural``: name of its
    groups, if it is listed and evicted in groups. ``cache``: name of the cache that is looked up, if it is looked up.
    """

    _value_: str
    noun: str
    word: str
    plural: str
    cache: str
    proof: Proof
    tiers: Tiers
    upkeep: Upkeep

    def __new__(cls, value: str, words: tuple[str, str, str, str], proof: Proof, tiers: Tiers, upkeep: Upkeep) -> Kind:
        """Create a member whose value is ``value`` alone."""
        kind = object.__new__(cls)
        kind._value_ = value
        kind.noun, kind.word, kind.plural, kind.cache = words
        kind.proof, kind.tiers, kind.upkeep = proof, tiers, upkeep
        return kind

    @property
    def has_record(self) -> bool:
        """Tell whether a sealed record beside the file attests it, and no seal in it."""
        return self.proof.evidence is Evidence.RECORD

    # Those in groups in the order of their eviction: what refers to others comes before them.
    AOT_ENTRY = (
        "aot_autograd",
        ("AOTAutograd entry", "aot", "AOTAutograd entries", "AOTAutograd"),
        _need_seal(fingerprint=Fingerprint.GRAPH),
        Tiers("aotautograd/{key}", Travel.GROUPS, r"a[a-z2-7]{51}", True, LeaseScope.HOSTS),
        Upkeep(Eviction.BY_USE, False, True),
    )
    FX_ENTRY = (
        "fx_graph",
        ("FX graph entry", "fx", "FX graph entries", "FX graph"),
        _need_seal(fingerprint=Fingerprint.GRAPH),
        Tiers("fxgraph/{shard}/{key}", Travel.GROUPS, r"f[a-z2-7]{51}", True, LeaseScope.HOSTS),
        Upkeep(Eviction.BY_USE, False, True),
    )
    # The generated code of the largest graphs has some MB. It is compared with what is generated, where that is.
    SOURCE = (
        "source",
        ("generated source", "", "", ""),
        _need_record(SealedName.FILE, _BUILD, 64 * _MIB),
        _STAYS,
        _UNLISTED,
    )
    # Inductor names a library after its source and flags only, not after torch's headers. A precompiled header has
    # 0.3 GB, an extension with kernels for all GPUs (such as FlashAttention's) up to 1 GB.
    NATIVE_CODE = (
        "native_code",
        ("compiled code", "code", "sources and libraries", ""),
        _need_record(SealedName.PATH, ("machine", "torch", "cpu"), 4 * _GIB),
        Tiers("{key}", Travel.FILES, rf"[a-z2-7]{{2}}/{PART}", True, LeaseScope.NONE),
        Upkeep(Eviction.BY_USE, True, True),
    )
    # JSON of what was measured, of all kernels in one file.
    AUTOTUNING = (
        "autotuning",
        ("autotuning result", "autotune", "autotuning results", ""),
        _need_record(SealedName.FILE, _BUILD, 64 * _MIB),
        Tiers("{key}", Travel.FILES, rf"[a-z2-7]{{2}}/{PART}\.best_config", True, LeaseScope.NONE),
        Upkeep(Eviction.BY_USE, False, True),
    )
    # Triton names a kernel after its GPU, and uses it with any torch. Cubins and modules have up to some MB, the IR of
    # the largest kernels some tens.
    KERNEL = (
        "kernel",
        ("kernel file", "triton", "Triton kernels", "Triton"),
        _need_record(SealedName.FOLDER, ("machine", "triton"), 256 * _MIB),
        Tiers("{key}", Travel.GROUPS, r"[A-Z2-7]{52}", True, LeaseScope.HOST),
        Upkeep(Eviction.BY_USE, True, True),
    )
    KNOWN_BAD = (
        "compile_crash",
        ("note of a crash", "known-bad", "notes of crashes", ""),
        _need_seal(bound_to=("machine", "triton"), max_bytes=_MIB),
        _STAYS,
        Upkeep(Eviction.BY_USE, False, False),
    )
    # A function that is looked up is counted as a model. Its seal does not say which it is.
    AOT_FUNCTION = (
        "aot_function",
        ("ahead-of-time compiled function", "model", "", ""),
        _need_seal(SealedName.NOTHING, fingerprint=Fingerprint.PROCESS),
        Tiers("{key}", Travel.FILES, _PATH, False, LeaseScope.NONE),
        _UNLISTED,
    )
    AOT_MODEL = (
        "aot_model",
        ("ahead-of-time compiled model", "model", "", "ahead of time"),
        _need_seal(SealedName.NOTHING, fingerprint=Fingerprint.PROCESS),
        _STAYS,
        _UNLISTED,
    )
    AOT_GRAPH = (
        "aot_graph",
        ("ahead-of-time compiled graph", "", "", ""),
        _need_seal(SealedName.NOTHING, fingerprint=Fingerprint.PROCESS),
        _STAYS,
        _UNLISTED,
    )
    DYNAMO_PACKAGE = (
        "dynamo_package",
        ("precompile entry", "", "", ""),
        _need_seal(fingerprint=Fingerprint.PROCESS),
        Tiers("dynamo/{key}/entry", Travel.FILES, PART, True, LeaseScope.NONE),
        _UNLISTED,
    )
    PRECOMPILED = (
        "precompiled",
        ("precompiled source and cache", "", "", ""),
        _need_seal(fingerprint=Fingerprint.PROCESS),
        _STAYS,
        _UNLISTED,
    )
    # Its interface to torch is stable, and torch itself warns about another GPU.
    PACKAGE = "package", ("AOTInductor package", "", "", ""), _need_seal(bound_to=("machine", "cpu")), _STAYS, _UNLISTED
    PGO_STATE = (
        "pgo_state",
        ("profile of dynamic shapes", "", "", ""),
        _need_seal(bound_to=()),
        Tiers("dynamo/code_state_{safe_key}.pkl", Travel.FILES, r"[^\x00-\x1f]+", True, LeaseScope.NONE),
        _UNLISTED,
    )
    MEMO = "memo", ("memoized result", "", "", ""), _need_seal(bound_to=()), _STAYS, _UNLISTED
    TABLE = (
        "artifact_table",
        ("vLLM's table of artifacts", "", "", ""),
        _need_record(SealedName.PATH, (), UNSEALED_BYTES),
        Tiers("{key}", Travel.GROUPS, _PATH, False, LeaseScope.NONE),
        _UNLISTED,
    )
    # Never sealed as such, since nothing unpickles them: here to be named. Headers have records of compiled code.
    OTHER = "other", ("artifact", "", "", ""), _UNPROVEN, _STAYS, _UNLISTED
    HEADER = (
        "header",
        ("precompiled header", "header", "precompiled headers", ""),
        _need_record(SealedName.PATH, ("machine", "torch", "cpu"), 4 * _GIB),
        _STAYS,
        Upkeep(Eviction.BY_USE, True, False),
    )
    TEMPORARY = "temporary", ("temporary file", "temporary", "temporary files", ""), _UNPROVEN, _STAYS, _UNLISTED
    QUARANTINE = "quarantine", ("file in quarantine", "quarantine", "quarantine", ""), _UNPROVEN, _STAYS, _WORTHLESS
    CRASH_REPORT = "crash_report", ("crash report", "crash", "crash reports", ""), _UNPROVEN, _STAYS, _WORTHLESS
    DIFFERENCE = (
        "difference",
        ("entry that recompiles differently", "difference", "entries that recompile differently", ""),
        _UNPROVEN,
        _STAYS,
        _WORTHLESS,
    )
    JOURNAL = "journal", ("journal of lookups", "journal", "journals of lookups", ""), _UNPROVEN, _STAYS, _WORTHLESS
    KEY_RECORD = (
        "key_record",
        ("record of a key", "keys", "records of keys", ""),
        _UNPROVEN,
        _STAYS,
        Upkeep(Eviction.LAST, False, False),
    )
    RECORD = "record", ("orphaned record", "record", "orphaned records", ""), _UNPROVEN, _STAYS, _WORTHLESS
    LOCK = "lock", ("orphaned lock", "lock", "orphaned locks", ""), _UNPROVEN, _STAYS, _WORTHLESS
    # What is in them is judged by itself.
    PACK = "pack", ("pack", "", "", ""), _need_seal(bound_to=()), _STAYS, _UNLISTED
    PARCEL = (
        "parcel",
        ("group of files in the remote cache", "remote", "", ""),
        _need_seal(bound_to=()),
        _STAYS,
        _UNLISTED,
    )
    # What safecache itself notes: see signing.side_records.
    SIDE_RECORD = "side_record", ("record beside a cache", "", "", ""), _need_seal(bound_to=()), _STAYS, _UNLISTED


# What is counted of the remote tier.
OF_REMOTE = tuple(count for count in Count if count.name.startswith("REMOTE_"))
OF_FLIGHTS = (Count.LEFT_TO_OTHERS, Count.WAITED_IN_VAIN)
OF_RECOMPILE_CHECK = (Count.RECOMPILED, Reason.DIFFERS, Reason.NOT_RECOMPILED)
# What torch keeps with its own seal, one file for each key and its guards.
ENTRIES = (Kind.AOT_ENTRY, Kind.FX_ENTRY)
# What is looked up by a key. A model is only given to torch, as a file that was compiled ahead of time.
LOOKED_UP = (Kind.AOT_ENTRY, Kind.FX_ENTRY, Kind.KERNEL, Kind.AOT_MODEL)
