"""Events that the core tells its observers, and ports that features implement: all that a feature's author reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import Enum
from typing import Any, NamedTuple, Protocol

from safecache.places.refs import Ref
from safecache.reporting.events import Counted, observe, read_counters, stop_observing, tell
from safecache.reporting.kinds import Kind, Reason
from safecache.reporting.report import Observed, Refusal, Refused

__all__ = [
    "Admitted",
    "Bundle",
    "Compiler",
    "Compiling",
    "Counted",
    "File",
    "Flight",
    "Found",
    "HitCheck",
    "KernelRequest",
    "KeyPart",
    "LeftToOthers",
    "LoadGuard",
    "Lookup",
    "Observed",
    "Outcome",
    "Published",
    "Refused",
    "Requested",
    "Saved",
    "Served",
    "SingleFlight",
    "Tier",
    "Tiers",
    "Use",
    "Waited",
    "observe",
    "plugs",
    "stop_observing",
    "tell",
]


class Outcome(Enum):
    """Outcome of a lookup. A bypass is a graph that torch did not look up, or a hit that a setting ignores."""

    HIT = "hit"
    MISS = "miss"
    BYPASS = "bypass"


class Lookup(NamedTuple):
    """Event: a lookup has ended. ``ref``: of a kind of LOOKED_UP. ``reason``: None for a hit.

    ``name``: the compiled function or kernel, as its author calls it; "" for a hit. ``detail``: adds to the reason, for
    a person; may be "". ``seconds``: duration of the lookup. ``frame``: Dynamo's id of the compile, such as "0/1"; ""
    outside of one. ``saved``: seconds of compiling that a hit has spared. ``is_part``: an outer lookup goes on, whose
    entry refers to this one.
    """

    ref: Ref
    name: str
    outcome: Outcome
    reason: Reason | None
    detail: str
    seconds: float
    frame: str
    saved: float = 0.0
    is_part: bool = False


class Found(NamedTuple):
    """Sealed ``content`` that a lookup offers torch. ``ref``: its root is the cache that holds it; "" if a lower tier.

    ``origin``: its path, or a description of the remote.
    """

    ref: Ref
    content: bytes
    origin: str


class Saved(NamedTuple):
    """Event: an entry was saved, perhaps after a miss. ``seconds``: duration of its compile; 0 if unknown."""

    ref: Ref
    seconds: float = 0.0


class Waited(NamedTuple):
    """Event: this thread has waited so many ``seconds`` for another process to compile or build ``ref``."""

    ref: Ref
    seconds: float


class LeftToOthers(NamedTuple):
    """Event: a wait for another process has ended with a hit.

    ``waited``: seconds waited. ``took``: seconds for which the other process held the lease.
    """

    ref: Ref
    waited: float
    took: float


class Published(NamedTuple):
    """Event: a file was published in the cache directory ``root``."""

    root: str


class Requested(NamedTuple):
    """Event: this process looks ``ref`` up."""

    ref: Ref


class Admitted(NamedTuple):
    """Event: the file, or a kernel's directory, at ``path`` was verified, and this thread is about to use it."""

    path: str


class Compiling(NamedTuple):
    """Event: something was missed and is about to be compiled. ``ref``: its key is "" if it is not looked up by itself.

    ``graph``: torch's graph, or a kernel's KernelRequest. ``name``: returns what its author calls it. ``lines``: what
    its key was computed from, as torch prints it; may be empty.
    """

    ref: Ref
    graph: Any
    name: Callable[[], str] = str
    lines: Sequence[str] = ()


class KernelRequest(NamedTuple):
    """Arguments of Triton's get_cache_key(), and the ``key`` it returned. ``variables``: the environment in the key."""

    source: Any
    backend: Any
    options: Any
    key: str
    variables: Any

    @property
    def metadata(self) -> str:
        """Name of the kernel's metadata file, by which Triton looks the group up."""
        return f"{self.source.name[:150]}.json"


class Served(NamedTuple):
    """Event: this thread is about to load, or compile and save, a function of a server's ``model``."""

    model: Any


class Use(NamedTuple):
    """Files of the cache ``root`` that are about to be loaded, by their ``names`` in it; or an artifact's name.

    ``kind``: what is ``loaded``: a graph (FX_ENTRY), a kernel, a package's model, or a library (NATIVE_CODE). A library
    has no first run after its load. ``forgives``: an exception does not count against the files.
    """

    kind: Kind
    root: str
    names: list[str]
    loaded: Any = None
    forgives: bool = False


class File(NamedTuple):
    """File of a bundle. ``name``: relative to the directory of its ref. ``record``: its sealed record, None if none.

    ``mode``: permissions of its copies, before the umask.
    """

    name: str
    content: bytes
    record: bytes | None
    mode: int = 0o666


class Bundle(NamedTuple):
    """Unverified files of one cache key, or one of its several entries, as a tier has them.

    ``ref``: its root is the directory that holds them, "" if none does. ``origin``: that place, for a person.
    ``label``: the kind of tier; each kind has warnings of its own. ``judged``: called with None once the files are
    copied into the cache, or with the refusal. ``refusal``: why the tier itself does not supply them.
    """

    ref: Ref
    files: tuple[File, ...]
    origin: str
    label: str = ""
    judged: Callable[[Refusal | None], None] = lambda _: None
    refusal: Refusal | None = None


class Tier(Protocol):
    """Port: a tier that is searched after the cache, such as a pack or a server. What it returns is unverified.

    No method raises anything in default mode.
    """

    def find_candidates(self, ref: Ref) -> Iterator[Bundle]:
        """Yield each unverified bundle that the tier has for ``ref``, of a cache above it; the best first."""
        yield from ()

    def keep(self, ref: Ref, *, again: bool = False) -> None:
        """Store the files of ``ref``, which this process has made. ``again``: replace what is stored under the key."""
        return None


class Compiler(Protocol):
    """Port: compiles Triton's kernels outside this process. Without a feature, Triton compiles them in this process."""

    def begin(self) -> None:
        """Prepare for a compile, which may follow soon."""
        return None

    def request(self, request: KernelRequest) -> None:
        """Note that this thread is about to look this kernel up. May raise to end the lookup."""
        return None

    def compile(self, source: Any, options: tuple[Any, ...], work: Callable[[], Any]) -> Any:
        """Call ``work``, which is triton.compile() of ``source`` and ``options``, and return its result."""
        return work()

    def make(
        self, request: KernelRequest | None, manager: Any, directory: str, found: dict[str, str] | None
    ) -> dict[str, str] | None:
        """Return the kernel's group: ``found``, if usable, else one that is compiled now; None: Triton compiles it.

        ``request``: of this thread's lookup, None if unknown. ``manager``: Triton's cache manager. ``directory``: of
        the kernel in the cache. A group maps names of files to paths.
        """
        return found


class KeyPart(Protocol):
    """Port: fingerprint of what upstream's cache keys leave out, sealed with an entry and compared before each use."""

    def build_fingerprint(self, ref: Ref, parts: tuple[Ref, ...] | None = (), made: Any = None) -> Mapping[str, str]:
        """Return the fingerprint to seal with an entry. ``parts``: entries it refers to; None: its graphs are unknown.

        ``made``: a function that was compiled ahead of time.
        """
        return {}

    def find_refusal(self, ref: Ref, provenance: Mapping[str, str]) -> Refusal | None:
        """Return why an entry with this verified ``provenance`` does not fit this process; None if it fits."""
        return None

    def is_rank_dependent(self) -> bool:
        """Tell whether each rank compiles this thread's graph for itself, so that no rank waits for another."""
        return False


class LoadGuard(Protocol):
    """Port: may veto verified files, and watches their load and first run for crashes."""

    def open_cache(self, root: str) -> object:
        """Read once per process what is known about the cache ``root``, before the first read or write there."""
        return None

    def find_refusal(self, ref: Ref, name: str, *, is_lower: bool = False) -> Refusal | None:
        """Return why the file or artifact ``name`` must not be loaded; for "", why nothing of the key; None if it may.

        ``is_lower``: the file is in a tier below the cache.
        """
        return None

    def is_unrelated(self, error: Exception, root: str) -> bool:
        """Tell whether ``error``, of a load or a first run, is clearly not the fault of files of the cache ``root``."""
        return True

    def load(self, use: Use, work: Callable[[], Any]) -> Any:
        """Call ``work``, which loads the files of ``use``, and return its result. Raises what ``work`` does."""
        return work()

    def announce(self, use: Use) -> None:
        """Note that a kernel was found that will be loaded later."""
        return None


class Flight(Protocol):
    """Result of SingleFlight.wait_or_lead(): after a wait, or with the lease. In both cases the caller looks again.

    ``waited``: seconds. ``elsewhere``: another host was waited for, so the remote may have the entry now.
    """

    waited: float
    elsewhere: bool

    def mark_found(self) -> None:
        """Note that the second look has found the entry, so that nothing is compiled."""


class HitCheck(Protocol):
    """Port: hides a sample of hits from torch, and compares them with what torch compiles and saves instead."""

    def should_hide(self, found: Sequence[Found]) -> bool:
        """Tell whether torch is to miss these hits: an entry, followed by the entries that it refers to."""
        return False

    def is_new(self, ref: Ref, content: bytes) -> bool:
        """Tell whether to save this entry: False if it matches the hidden entry of its key."""
        return True


class SingleFlight(Protocol):
    """Port: chooses the process that compiles a missing key, and lets the others wait for it."""

    def compile_scope(self, kind: Kind, most: float | None, *, trains: bool = False) -> AbstractContextManager[None]:
        """Mark this block as a compile of ``kind`` by this thread: lookups of the kind in it may take a lease or wait.

        ``most``: limit of a wait in seconds, besides that of SAFECACHE_WAIT; None: neither wait nor take a lease.
        It is infinite for a process that is no rank. ``trains``: the key is saved with its backward: a rank does not
        wait for it, and another process only for one on this host whose has_waiter() is True then.
        """
        return nullcontext()

    def has_waiter(self) -> bool:
        """Tell whether another process waits for the graph that trains which this thread compiles."""
        return False

    def wait_or_lead(self, ref: Ref, before: Callable[[], float]) -> Flight | None:
        """Wait for the process that compiles ``ref``, or take the lease. Call it after a miss. None: do not look again.

        ``before``: returns the seconds of the last compile, 0 if unknown; may not be called.
        """
        return None

    def is_compiled_elsewhere(self) -> bool:
        """Tell whether another process compiles what this thread has looked up, and this thread did not wait for it."""
        return False


class Tiers(Tier):
    """Tier that consists of several, searched in the order in which they were added."""

    def __init__(self) -> None:
        self._tiers: list[Tier] = []

    def add(self, tier: Tier) -> None:
        """Add ``tier`` as the last to be searched, unless it is there already."""
        if tier not in self._tiers:
            self._tiers.append(tier)

    def find_candidates(self, ref: Ref) -> Iterator[Bundle]:
        for tier in self._tiers:
            yield from tier.find_candidates(ref)

    def keep(self, ref: Ref, *, again: bool = False) -> None:
        for tier in self._tiers:
            tier.keep(ref, again=again)


def _answer_alone(port: Any) -> Any:
    """Return an object whose methods are those of the port itself."""
    return type(port.__name__, (port,), {})()


class Plugs:
    """Implementations of the ports, to which features assign objects or modules. The defaults let the core work alone.

    ``why_missed``: of a ref and the name of its graph or kernel, why the key is not in the cache. ``compile_seconds``:
    of the same, the seconds of the compile when it was last saved there; 0 if unknown. ``stats``: how often each thing
    happened in this process.

    ``acquire_lease``: takes the lease on a ref among hosts, and waits for at most the seconds that its second argument
    returns. Returns a function that releases the lease, or None without one, and the seconds waited.
    """

    def __init__(self) -> None:
        self.why_missed: Callable[[Ref, str], Reason] = lambda *_: Reason.NEVER_SEEN
        self.compile_seconds: Callable[[Ref, str], float] = lambda *_: 0.0
        self.stats: Callable[[], dict[str, int]] = read_counters
        self.acquire_lease: Callable[[Ref, Callable[[], float]], tuple[Callable[[], None] | None, float]]
        self.acquire_lease = lambda *_: (None, 0.0)
        self.tiers = Tiers()
        self.compiler: Compiler = _answer_alone(Compiler)
        self.hit_check: HitCheck = _answer_alone(HitCheck)
        self.key_part: KeyPart = _answer_alone(KeyPart)
        self.load_guard: LoadGuard = _answer_alone(LoadGuard)
        self.single_flight: SingleFlight = _answer_alone(SingleFlight)


plugs = Plugs()
