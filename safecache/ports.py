"""What the core tells its observers, and asks of its features: all of it that the author of a feature reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import Enum
from typing import Any, NamedTuple, Protocol

from safecache.places.refs import Ref
from safecache.reporting.events import Counted, counters, observe, stop_observing, tell
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
    """A bypass is a graph that torch did not look up, or a hit that a setting ignores."""

    HIT = "hit"
    MISS = "miss"
    BYPASS = "bypass"


class Lookup(NamedTuple):
    """A lookup has ended. ``ref``: of a kind of LOOKED_UP. ``reason``: None for a hit.

    ``name``: the compiled function, or the kernel, as its author calls it; "" for a hit. ``frame``: Dynamo's id of the
    compile it was for, such as "0/1", "" outside of one. ``seconds``: what it took. ``saved``: the seconds of compiling
    that a hit has spared. ``is_part``: the lookup of what refers to it goes on.
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
    """What a lookup was given, sealed. ``ref``: with the cache that it lies in, at ``origin``; "" for a lower tier."""

    ref: Ref
    content: bytes
    origin: str


class Saved(NamedTuple):
    """An entry was saved, perhaps after a miss. ``seconds``: what its compile took, 0 if that is not known."""

    ref: Ref
    seconds: float = 0.0


class Waited(NamedTuple):
    """So many seconds were waited for what other processes compile or build."""

    ref: Ref
    seconds: float


class LeftToOthers(NamedTuple):
    """It was found after a wait of so many seconds for another process, which ``took`` so many to compile it."""

    ref: Ref
    waited: float
    took: float


class Published(NamedTuple):
    """A file was published in the cache ``root``."""

    root: str


class Requested(NamedTuple):
    """It is looked up by this process."""

    ref: Ref


class Admitted(NamedTuple):
    """The file, or a kernel's directory, at ``path`` was verified, and this thread is about to use it."""

    path: str


class Compiling(NamedTuple):
    """What was not found is about to be compiled. ``ref``: without a key if it is not looked up by itself.

    ``graph``: or a kernel's KernelRequest. ``name``: what its author calls it. ``lines``: what its key was computed
    from, as torch prints it; empty where torch has not.
    """

    ref: Ref
    graph: Any
    name: Callable[[], str] = str
    lines: Sequence[str] = ()


class KernelRequest(NamedTuple):
    """What triton.compile() has computed the cache ``key`` of, with ``variables`` of the environment in it."""

    source: Any
    backend: Any
    options: Any
    key: str
    variables: Any

    @property
    def metadata(self) -> str:
        """The name of the file of its metadata."""
        return f"{self.source.name[:150]}.json"


class Served(NamedTuple):
    """A compiled function of this ``model`` of a server is about to be loaded, or made and saved, by this thread."""

    model: Any


class Use(NamedTuple):
    """What is about to be loaded from the cache ``root``: files by their ``names`` there, or an artifact's name.

    ``kind``: what is ``loaded``: a graph (FX_ENTRY), a kernel, a package's model, or a library (NATIVE_CODE), whose
    load is all of its use. ``forgives``: an exception does not count against the files.
    """

    kind: Kind
    root: str
    names: list[str]
    loaded: Any = None
    forgives: bool = False


class File(NamedTuple):
    """A file of a bundle. ``name``: below the directory of its ref. ``record``: None if it has none.

    ``mode``: less the umask, of its copies.
    """

    name: str
    content: bytes
    record: bytes | None
    mode: int = 0o666


class Bundle(NamedTuple):
    """The files of a cache key, or one entry of several, as a tier has them: nobody has verified them.

    ``ref``: with the directory that they lie in as its root; "" for what lies in none. ``origin``: where that is, for a
    person. ``label``: what kind of tier it is; each has warnings of its own. ``judged``: called once they are copied
    into the cache, or with the refusal. ``refusal``: why the tier itself does not give them.
    """

    ref: Ref
    files: tuple[File, ...]
    origin: str
    label: str = ""
    judged: Callable[[Refusal | None], None] = lambda _: None
    refusal: Refusal | None = None


class Tier(Protocol):
    """A cache below others, such as a directory, a pack or a server. It verifies nothing that others wrote.

    No method raises anything in default mode.
    """

    def candidates(self, ref: Ref) -> Iterator[Bundle]:
        """Yield what it has under the key of this ref, of a cache above it: the best first, all of it unverified."""
        yield from ()

    def keep(self, ref: Ref, *, again: bool = False) -> None:
        """Have its files kept, which this process has made. ``again``: in place of what is kept under its key."""
        return None


class Compiler(Protocol):
    """Makes Triton's kernels apart from this process; without it Triton makes them, here."""

    def begin(self) -> None:
        """A kernel may be compiled soon."""
        return None

    def request(self, request: KernelRequest) -> None:
        """This thread is about to look it up."""
        return None

    def compile(self, source: Any, options: tuple[Any, ...], work: Callable[[], Any]) -> Any:
        """What ``work`` returns, which is triton.compile() of ``source`` with these further arguments."""
        return work()

    def make(
        self, request: KernelRequest | None, manager: Any, directory: str, found: dict[str, str] | None
    ) -> dict[str, str] | None:
        """The group that was ``found`` for this thread's request, else one that is made now; None: Triton makes it."""
        return found


class KeyPart(Protocol):
    """What upstream's cache keys leave out: sealed with an entry, and compared before that is used."""

    def statement(self, ref: Ref, parts: tuple[Ref, ...] | None = (), made: Any = None) -> Mapping[str, str]:
        """What its seal says of an entry. ``parts``: the entries that it refers to; None: its graphs are not known.

        ``made``: a function that was compiled ahead of time.
        """
        return {}

    def refusal(self, ref: Ref, provenance: Mapping[str, str]) -> Refusal | None:
        """Why an entry with this sealed provenance, or none, does not fit this process; None if it does."""
        return None

    def differs_by_rank(self) -> bool:
        """Whether each rank compiles this thread's graph for itself: none has to wait for another."""
        return False


class LoadGuard(Protocol):
    """May veto what was verified, and stands around its load and its first run."""

    def open_cache(self, root: str) -> object:
        """Look, once in a process, at what is known of a cache, before anything is read from it or written there."""
        return None

    def refusal(self, ref: Ref, name: str, *, is_lower: bool = False) -> Refusal | None:
        """Why the file, or artifact, of this name is not to be loaded; for "", why nothing of its key is.

        ``is_lower``: it lies in a tier below the cache.
        """
        return None

    def is_unrelated(self, error: Exception, root: str) -> bool:
        """Whether an exception from a load or a first run is plainly no fault of what the cache ``root`` supplied."""
        return True

    def load(self, use: Use, work: Callable[[], Any]) -> Any:
        """What ``work`` returns, which loads it. Raises what that does."""
        return work()

    def announce(self, use: Use) -> None:
        """A kernel was found, which is loaded later."""
        return None


class Flight(Protocol):
    """The end of a wait, or a lead: in either case there may be something to be found now.

    ``waited``: in seconds. ``elsewhere``: another host was waited for, so that the remote may have it now.
    """

    waited: float
    elsewhere: bool

    def found(self) -> None:
        """It has been found: nothing is compiled."""


class HitCheck(Protocol):
    """Has some of what is found compiled again where it would be used, to be compared with what is saved then."""

    def hides(self, found: Sequence[Found]) -> bool:
        """Tell whether torch is to miss what a lookup has found: an entry before those that it refers to."""
        return False

    def is_new(self, ref: Ref, content: bytes) -> bool:
        """Tell whether an entry is to be saved: not if it is what was hidden under its key."""
        return True


class SingleFlight(Protocol):
    """Who compiles what is missing, and who waits for it."""

    def compile_scope(self, kind: Kind, most: float | None, *, waits: bool = True) -> AbstractContextManager[None]:
        """A compile of this kind by this thread, for this block: lookups of the kind in it may lead, or wait.

        ``most``: the seconds that it may wait, besides what a setting says; None if neither is it to wait, nor anybody
        for it. ``waits``: else a lookup only finds out whether another process is compiling that, on this host.
        """
        return nullcontext()

    def wait_or_lead(self, ref: Ref, before: Callable[[], float]) -> Flight | None:
        """Wait for whoever compiles this already, or lead: this thread has missed. None: no use in looking again.

        ``before``: tells, if it is called, how many seconds the compile took the last time, 0 where nobody knows.
        """
        return None

    def is_compiled_elsewhere(self) -> bool:
        """Whether what this thread has looked up is compiled by another process, for which it has not waited."""
        return False


class Tiers(Tier):
    """Several as one, the nearest first."""

    def __init__(self) -> None:
        self._tiers: list[Tier] = []

    def add(self, tier: Tier) -> None:
        """Have it looked in after the others, once."""
        if tier not in self._tiers:
            self._tiers.append(tier)

    def candidates(self, ref: Ref) -> Iterator[Bundle]:
        for tier in self._tiers:
            yield from tier.candidates(ref)

    def keep(self, ref: Ref, *, again: bool = False) -> None:
        for tier in self._tiers:
            tier.keep(ref, again=again)


def _answer_alone(port: Any) -> Any:
    """Return an object whose methods are those of the port itself."""
    return type(port.__name__, (port,), {})()


class Plugs:
    """What features have plugged in, and the core asks; each may be a module. Without them the core works as well.

    ``why_missed``: of a key and the name of its graph or kernel, why it is not there. ``compile_seconds``: of the same,
    how long the compile took when it was last saved there; 0 where nobody knows. ``stats``: how often each thing
    happened in this process.

    ``acquire_lease``: takes the lease on a key among the hosts, and waits for others at most as long as its function
    says. Returns what releases it, None if it cannot be had, and the seconds that were waited.
    """

    def __init__(self) -> None:
        self.why_missed: Callable[[Ref, str], Reason] = lambda *_: Reason.NEVER_SEEN
        self.compile_seconds: Callable[[Ref, str], float] = lambda *_: 0.0
        self.stats: Callable[[], dict[str, int]] = counters
        self.acquire_lease: Callable[[Ref, Callable[[], float]], tuple[Callable[[], None] | None, float]]
        self.acquire_lease = lambda *_: (None, 0.0)
        self.tiers = Tiers()
        self.compiler: Compiler = _answer_alone(Compiler)
        self.hit_check: HitCheck = _answer_alone(HitCheck)
        self.key_part: KeyPart = _answer_alone(KeyPart)
        self.load_guard: LoadGuard = _answer_alone(LoadGuard)
        self.single_flight: SingleFlight = _answer_alone(SingleFlight)


plugs = Plugs()
