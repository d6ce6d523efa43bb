"""Lookups under way: what each of a thread's lookups meets, and how it ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from safecache import compiles, ports
from safecache.errors import MissError
from safecache.places.refs import Ref
from safecache.ports import Found, Lookup, Outcome, Refused
from safecache.reporting import events, report
from safecache.reporting.kinds import Kind, Reason
from safecache.session import Part, inherit
from safecache.settings import config

__all__ = [
    "Search",
    "active_candidates",
    "add_wait",
    "has_postponed_workers",
    "is_under_way",
    "last_compile_seconds",
    "note_bypass",
    "offer",
    "pass_over",
    "postpone_workers",
    "record_bypass_reason",
    "refuse",
    "set_lookup_key",
    "start_workers",
    "sum_compile_seconds",
    "track_lookup",
]

# By key: torch looks a graph up again that an AOTAutograd entry refers to, when what was refused has been moved away.
_refused: Part[dict[tuple[Kind, str], tuple[Reason, str]]] = Part(dict, inherit)

# What starts torch's compile workers, in a list while that is postponed: a process that hits everything needs none.
_postponed: Part[list[Callable[[], None]]] = Part(list, inherit)


class Search:
    """State of a lookup. ``name``: returns the name of its graph or kernel; only called if it does not hit.

    ``ref``: without a key until torch has computed it. ``must_ask``: count the lookup only if it asks for a key.
    """

    def __init__(self, ref: Ref, name: Callable[[], str], *, must_ask: bool = False) -> None:
        self.ref, self._must_ask = ref, must_ask
        self.ended = False
        # The candidate that torch has been given and has not passed over.
        self.taken: object = None
        self.path = ""
        self.declined = ""
        self.found: list[Found] = []
        self._outer: Search | None = None
        self._name = name
        self._began = time.perf_counter()
        self._refusal: tuple[Reason, str] | None = None
        self._was_passed_over = False
        self._error: MissError | None = None

    def refuse(self, reason: Reason, detail: str) -> None:
        """Note that a candidate cannot be used: the first such reason explains a miss."""
        self._refusal = self._refusal or (reason, detail)
        if reason is not Reason.ENTRY_MISSING:
            _refused.now.setdefault((self.ref.kind, self.ref.key), (reason, detail))

    def is_hidden(self) -> bool:
        """Tell whether torch is to compile what this has found, to compare both."""
        is_for_use = not compiles.current.only_looks and not config.current().must_hit
        return is_for_use and ports.plugs.hit_check.should_hide(self.found)

    @property
    def is_taken(self) -> bool:
        """Whether torch has a candidate that it has not passed over."""
        return self.taken is not None

    def pass_over(self) -> None:
        """Note that the guards of the last candidate do not hold."""
        self.taken, self._was_passed_over = None, True

    def exclude_wait(self, seconds: float) -> None:
        """Exclude these ``seconds`` from the time of this lookup and of those that it is part of."""
        self._began += seconds
        if self._outer is not None:
            self._outer.exclude_wait(seconds)

    def find_compile_seconds(self) -> float:
        """Return the seconds that a compile of this key took when it was last saved here; 0 if not known."""
        with report.contain_errors("the record of a cache key", "How long its compile took is not known."):
            return ports.plugs.compile_seconds(self.ref, self._name())
        return 0.0

    def end_as_hit(self) -> None:
        """End as a hit. Raises MissError for a miss inside this lookup that torch has swallowed."""
        _refused.now.pop((self.ref.kind, self.ref.key), None)
        # That of a graph within an AOTAutograd entry is part of the entry's.
        if self._outer is not None:
            self._outer.found += self.found
        _raise_miss(self._end(Outcome.HIT, None, ""))

    def end_as_miss(self, found: tuple[Reason, str] | None = None) -> None:
        """End as a miss. Why: the first refusal, else what the hook ``found``, else a failed guard, else the cache key.

        Raises MissError with SAFECACHE_STRICT=misses=1.
        """
        _raise_miss(self._end(Outcome.MISS, *(self._refusal or found or self._find_reason())))

    def end_as_bypass(self, reason: Reason, detail: str) -> None:
        """End as a bypass. Raises MissError with SAFECACHE_STRICT=misses=1, but for what torch never caches."""
        if self._error is not None:
            self.end_as_miss()  # torch's reason is our own error, of a miss inside this lookup
        _raise_miss(self._end(Outcome.BYPASS, reason, detail))

    def end_as_unloadable(self, error: BaseException) -> None:
        """End as a miss, since torch could not use what it found; the caller raises the exception."""
        self._end(Outcome.MISS, Reason.UNLOADABLE, _describe_error(error))

    def discard(self) -> None:
        """End unrecorded, as part of a lookup that has been reported."""
        self.ended = True

    def end_as_failed(self, error: BaseException) -> None:
        """End because of an exception, which the caller raises."""
        if self._refusal is not None:
            self._end(Outcome.MISS, *self._refusal)
        elif self.declined:
            self._end(Outcome.BYPASS, Reason.UPSTREAM_BYPASS, self.declined)
        else:
            self._end(Outcome.BYPASS, Reason.LOOKUP_FAILED, _describe_error(error))

    def _find_reason(self) -> tuple[Reason, str]:
        if self._was_passed_over:
            return Reason.GUARD_FAILED, "there are entries for the key, and their guards do not hold"
        if self.is_taken:
            return Reason.UNLOADABLE, "an entry was found, and torch could not use it"
        refused = _refused.now.get((self.ref.kind, self.ref.key))
        if refused is not None:
            return refused
        ref = self.ref._replace(root=self.ref.root or config.cache_directory() or "")
        with report.contain_errors("the search for what explains a miss", "The miss counts as never seen."):
            return ports.plugs.why_missed(ref, self._name()), ""
        return Reason.NEVER_SEEN, ""

    def _end(self, outcome: Outcome, reason: Reason | None, detail: str) -> MissError | None:
        self.ended = True
        if compiles.current.only_looks or (self._must_ask and not self.ref.key):
            return None
        seconds = time.perf_counter() - self._began
        hit = outcome is Outcome.HIT
        name, frame = ("", "") if hit else (self._name(), compiles.find_frame())
        saved = sum_compile_seconds(self.taken) if hit else 0.0
        is_part = self._outer is not None
        lookup = Lookup(self.ref, name, outcome, reason, detail, seconds, frame, saved, is_part)
        ports.tell(lookup)
        return self._tell_outer(lookup)

    def _tell_outer(self, lookup: Lookup) -> MissError | None:
        """Return the error to raise, if any; the outer lookup raises it at its end too."""
        error = self._error or _make_miss_error(lookup)
        if self._outer is not None:
            if lookup.outcome is Outcome.MISS and lookup.reason is not None:
                what = f"the {self.ref.kind.word} entry {self.ref.key[:16]}… that it needs: {lookup.reason.value}"
                self._outer.refuse(Reason.ENTRY_MISSING, what)
            # Torch treats an exception inside a lookup as a bypass, and compiles.
            self._outer._error = self._outer._error or error
        return error


def _describe_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _raise_miss(error: MissError | None) -> None:
    if error is not None:
        events.raise_strict(error)


def _make_miss_error(lookup: Lookup) -> MissError | None:
    """Return the error that SAFECACHE_STRICT=misses=1 makes of a lookup after which torch would compile.

    What torch never caches is not one, since no warming changes that. Nor is an AOTAutograd cache that is off: the FX
    graph cache is asked then. A file that was compiled ahead of time has an error of its own.
    """
    if lookup.outcome is Outcome.HIT or lookup.ref.kind is Kind.AOT_MODEL or not config.current().must_hit:
        return None
    disabled = lookup.reason is Reason.DISABLED and lookup.ref.kind is not Kind.AOT_ENTRY
    if lookup.outcome is Outcome.BYPASS and not disabled:
        return None
    return MissError(_describe_miss(lookup))


def _describe_miss(lookup: Lookup) -> str:
    reason = lookup.reason.value if lookup.reason is not None else ""
    detail = f": {lookup.detail}" if lookup.detail else ""
    where = f"the {lookup.ref.kind.cache} cache for {lookup.name or 'a graph'}"
    return (
        f"safecache: miss in {where} [{reason}]{detail} (key {lookup.ref.key or 'unknown'}), and"
        " SAFECACHE_STRICT=misses=1 forbids compiling. Help: safecache explain; warm the cache with the same code,"
        " settings and environment; or unset SAFECACHE_STRICT"
    )


# Fields of a CompiledFxGraph, and of an AOTAutograd entry: torch/_inductor/output_code.py and
# torch/_functorch/_aot_autograd/aot_autograd_result.py, the same in torch 2.11 to 2.15.
_TIMES = ("_time_taken_ns", "forward_time_taken_ns", "backward_time_taken_ns")


def sum_compile_seconds(entry: object) -> float:
    """Return how many seconds the compile of an entry took, as the entry states."""
    return sum(value for value in (getattr(entry, name, 0) for name in _TIMES) if isinstance(value, int)) / 10**9


@contextmanager
def track_lookup(ref: Ref, name: Callable[[], str], *, must_ask: bool = False) -> Iterator[Search]:
    """Track a lookup for the time of this block, which is to end it: see Search. An exception ends it too.

    What is no Exception is no failure: vLLM ends so the lookup of a graph that it has compiled already.
    """
    search = Search(ref, name, must_ask=must_ask)
    search._outer = compiles.current.search
    try:
        with compiles.override_scope(search=search):
            yield search
    except Exception as error:
        if not search.ended:
            search.end_as_failed(error)
        raise


def note_bypass(kind: Kind, name: Callable[[], str], reason: Reason, detail: str) -> None:
    """Record a graph that was not looked up. Raises MissError with SAFECACHE_STRICT=misses=1, unless never cached."""
    with track_lookup(Ref(kind), name) as search:
        search.end_as_bypass(reason, detail)


def _find_innermost(kind: Kind) -> Search | None:
    search: Search | None = compiles.current.search
    return search if search is not None and search.ref.kind.word == kind.word and not search.ended else None


def is_under_way(kind: Kind) -> bool:
    """Tell whether this thread's innermost lookup is of this kind."""
    return _find_innermost(kind) is not None


def set_lookup_key(ref: Ref) -> None:
    """Set what this thread's lookup is for, if the lookup is of this kind."""
    search = _find_innermost(ref.kind)
    if search is not None:
        search.ref = ref


def refuse(kind: Kind, reason: Reason, detail: str) -> None:
    """Record what this thread's lookup cannot use, and why, if the lookup is of this kind."""
    search = _find_innermost(kind)
    if search is not None:
        search.refuse(reason, detail)


ports.observe(Refused, lambda refused: refuse(*refused))


def record_bypass_reason(kind: Kind, detail: str) -> None:
    """Record why torch does not want to look, for this thread's lookup, if that is of this kind."""
    search = _find_innermost(kind)
    if search is not None:
        search.declined = detail


def last_compile_seconds(kind: Kind) -> float:
    """Return the seconds that the last compile took of what this thread looks up; 0 if unknown or other kind."""
    search = _find_innermost(kind)
    return search.find_compile_seconds() if search is not None else 0.0


def add_wait(kind: Kind, seconds: float) -> None:
    """Exclude a wait for another process from this thread's lookup, if that is of this kind."""
    search = _find_innermost(kind)
    if search is not None:
        search.exclude_wait(seconds)


def offer(ref: Ref, entry: object, content: bytes, origin: str, *, is_file: bool) -> None:
    """Tell this thread's lookup that it is about to be given this candidate. ``ref``, ``origin``: as in Found.

    ``is_file``: the origin is a path.
    """
    search = _find_innermost(ref.kind)
    if search is not None:
        search.taken, search.path = entry, origin if is_file else ""
        # In place of a candidate that was passed over, with what that referred to.
        search.found = [Found(ref, content, origin)]


def active_candidates() -> list[Search]:
    """Return this thread's lookups that were given a candidate from a file, the innermost first."""
    found, search = [], compiles.current.search
    while search is not None:
        if search.is_taken and search.path:
            found.append(search)
        search = search._outer
    return found


def pass_over(kind: Kind) -> None:
    """Record that this thread's lookup asks for another candidate than the one it was given."""
    search = _find_innermost(kind)
    if search is not None:
        search.pass_over()


def postpone_workers(begin: Callable[[], None]) -> None:
    """Defer the start of torch's compile workers: start_workers() calls ``begin``."""
    _postponed.now[:] = [begin]


def has_postponed_workers() -> bool:
    """Tell whether the start of torch's compile workers is deferred."""
    return bool(_postponed.now)


def start_workers() -> None:
    """Start torch's compile workers, if their start was deferred."""
    postponed = _postponed.now
    while postponed:
        postponed.pop()()
