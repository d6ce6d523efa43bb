"""Caches are filled by running a program until a fresh process of it finds everything there.

What a process has compiled is told by its journal, and by what is new in the caches afterwards: libraries are built
without a lookup, and a process that is killed may not have written what it has hit.
"""

from __future__ import annotations

import multiprocessing
import os
import pkgutil
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, Protocol

from safecache.explain import explanations, key_records
from safecache.history import Time, run_summary
from safecache.history.run_summary import LABELS, Line, Summary
from safecache.places import layout
from safecache.places.refs import Ref
from safecache.ports import Outcome
from safecache.reporting.kinds import Count, Kind, Reason
from safecache.settings import config
from safecache.tiers import directory_faults, levels
from safecache.upkeep import inventory

__all__ = [
    "PROCESSES",
    "Missing",
    "Process",
    "Warmed",
    "call",
    "fill_caches",
    "list_caches",
    "run",
]

# How many processes a program is run in at most.
PROCESSES = 3
# Seconds to wait for what a program has left behind, such as a process that sends to a remote cache.
_PATIENCE = 120.0
_TICK = 0.05
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_COUNTED = {kind: kind.plural for kind in Kind if kind.upkeep.is_warmed} | {Kind.NATIVE_CODE: "libraries"}
_BUILT = (".so", ".o")
_AGAIN = "it was compiled in the process before, and was not saved: that process's warnings say why"


class Missing(NamedTuple):
    """Item that a fresh process would recompile. ``layer``: the word of its kind; ``name``, ``key``: "" if unknown."""

    layer: str
    name: str
    key: str
    why: str


class Process(NamedTuple):
    """Result of one process of the program, with all that it has started.

    ``status``: as a shell has it. ``compiled``: number of new items in the caches, by kind. ``compiling_seconds``: of
    compiles that were saved. ``missed``: number of lookups that led to a compile. ``unsent``: uploads that were not
    finished. ``left``: number of started processes that still run.
    """

    status: int
    seconds: float
    compiled: dict[str, int]
    compiling_seconds: float
    lookups: int
    hits: int
    missed: int
    unsent: int
    left: int

    @property
    def is_warm(self) -> bool:
        """Tell whether the process succeeded and compiled nothing."""
        return self.status == 0 and not self.missed and not self.compiled


class Warmed(NamedTuple):
    """Result of run(). ``missing``: what the last process compiled. ``never_cached``: what torch never caches.

    Each of these tells why. ``obstacles``: what keeps caches from being filled. ``interrupted``: the name of the signal
    that ended the run, or "".
    """

    processes: list[Process]
    missing: list[Missing]
    never_cached: list[Missing]
    obstacles: list[str]
    interrupted: str = ""

    @property
    def status(self) -> int:
        """Exit status of the program, as a shell has it: the first that is not 0."""
        return next((each.status for each in self.processes if each.status), 0)

    @property
    def is_idle(self) -> bool:
        """Whether nothing was looked up that is known of."""
        return not any(each.lookups for each in self.processes)

    @property
    def all_hit(self) -> bool:
        """Whether the last process has found everything in the caches."""
        return bool(self.processes) and self.processes[-1].is_warm and not (self.interrupted or self.is_idle)


class _Child(Protocol):
    """Started as the leader of a session of its own."""

    pid: int

    def poll(self) -> int | None:
        """Return the exit status, as Popen.poll() does; None while the process runs."""


def run(command: Sequence[str], directories: Sequence[str] = (), most: int = PROCESSES, **popen: Any) -> Warmed:
    """Run ``command`` in up to ``most`` processes, one after the other, until one of them compiles nothing.

    Stops early if a process fails, a signal arrives, or two in a row miss the same. ``directories``: caches besides
    those of this environment. ``popen``: arguments of subprocess.Popen. Raises OSError if ``command`` cannot be
    started.
    """

    def start() -> subprocess.Popen[bytes]:
        environment = {**config.copy_environment(), **popen.get("env", {})}
        return subprocess.Popen(command, start_new_session=True, **{**popen, "env": environment})

    return fill_caches(start, directories, most)


class _Called:
    """A process of multiprocessing, as a _Child."""

    def __init__(self, function: Callable[..., object] | str, arguments: tuple[Any, ...]) -> None:
        self._process = multiprocessing.get_context("spawn").Process(target=_call_function, args=(function, arguments))
        self._process.start()
        self.pid = self._process.pid or 0

    def poll(self) -> int | None:
        return self._process.exitcode


def _call_function(function: Callable[..., object] | str, arguments: tuple[Any, ...]) -> None:
    with suppress(PermissionError):  # it leads one already
        os.setsid()
    named = pkgutil.resolve_name(function) if isinstance(function, str) else function
    named(*arguments)


def call(function: Callable[..., object] | str, *arguments: Any, processes: int = PROCESSES) -> Warmed:
    """Call ``function`` in up to ``processes`` spawned processes until one compiles nothing. Like run().

    ``function``: a callable, or its ``module:name``. Function and arguments must pickle, so a main module needs its
    ``if __name__ == "__main__"``.
    """
    return fill_caches(lambda: _Called(function, arguments), (), processes)


def fill_caches(start: Callable[[], _Child], directories: Sequence[str], most: int) -> Warmed:
    """Call ``start`` up to ``most`` times until its process, the leader of a session, compiles nothing. See run()."""
    found: list[Process] = []
    missing: list[Missing] = []
    never: list[Missing] = []
    before: set[tuple[str, str]] = set()
    signals: list[str] = []
    while len(found) < most:
        process, missing, never = _run_process(start, directories, missing, signals)
        found.append(process)
        now = {(each.layer, each.key or each.name) for each in missing}
        if process.status or signals or process.is_warm or (now and now == before):
            break
        before = now
    warmed = Warmed(found, missing, never, [], signals[0] if signals else "")
    return warmed if warmed.all_hit else warmed._replace(obstacles=_find_obstacles())


def _run_process(
    start: Callable[[], _Child], directories: Sequence[str], before: list[Missing], signals: list[str]
) -> tuple[Process, list[Missing], list[Missing]]:
    name = f"warm-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{os.urandom(4).hex()}"
    there, began = _list_contents(directories), time.monotonic()
    # What is sent is waited for, and a miss is no error.
    strict = "1" if config.current().strict else None
    variables = {"SAFECACHE_STRICT": strict, "SAFECACHE_MUST_HIT": None, "SAFECACHE_REMOTE_FLUSH": "600"}
    lent = config.set_child_environment(variables, run=name)
    try:
        with _forward_signals(signals) as tell:
            child = start()
            tell(child.pid)
            while (status := child.poll()) is None:
                time.sleep(_TICK)
            left = _await_session(child.pid)
    finally:
        config.set_child_environment(lent)
    took = time.monotonic() - began
    caches = list_caches(directories)
    new = {path: kind for (path, inode), kind in _list_contents(directories).items() if (path, inode) not in there}
    lines = [line for cache in caches for line in run_summary.read_unverified(cache)]
    summary = run_summary.summarise(lines, name) or Summary(name, Counter(), [], [], [])
    missed = [line for line in summary.missed if _is_miss(line.label)]
    never = [line for line in summary.missed if LABELS[line.label][2] is Reason.UPSTREAM_BYPASS]
    stated = [_explain_miss(line, caches, before) for line in missed]
    process = _describe_process(128 - status if status < 0 else status, took, new, summary, left)
    return process, [*stated, *_list_unlooked(new, process)], list(dict.fromkeys(map(_describe_miss, never)))


def _describe_process(status: int, took: float, new: dict[str, Kind], summary: Summary, left: int) -> Process:
    groups = Counter(_COUNTED[kind] for _, kind in {(_name_group(path), kind) for path, kind in new.items()})
    return Process(
        status,
        round(took, 3),
        dict(sorted(groups.items())),
        round(run_summary.find_seconds(summary.counts, Time.SPENT), 3),
        lookups=sum(summary.lookups.values()),
        hits=summary.hits,
        missed=sum(number for label, number in summary.lookups.items() if _is_miss(label)),
        unsent=summary.counts[Count.REMOTE_UNSENT.value],
        left=left,
    )


def _name_group(path: str) -> str:
    # Of a key's entries one is found; the object and the library of one source have the same name.
    directory, name = os.path.split(path)
    return os.path.join(directory, name.split(".")[0]) if name.endswith(_BUILT) else path


def _is_miss(label: str) -> bool:
    """Whether something is compiled after it that a cache could have had."""
    kind, outcome, reason = LABELS[label]
    if outcome is Outcome.BYPASS:
        # Without AOTAutograd's cache, the FX graph cache is asked; what torch never caches is told by itself.
        return reason is not Reason.UPSTREAM_BYPASS and not (reason is Reason.DISABLED and kind is Kind.AOT_ENTRY)
    return outcome is Outcome.MISS


def _describe_miss(line: Line) -> Missing:
    kind, outcome, reason = LABELS[line.label]
    detail = f": {line.detail}" if line.detail else ""
    return Missing(kind.word, line.name, line.key, f"{outcome.value}, {reason.value if reason else ''}{detail}")


def _explain_miss(line: Line, caches: Sequence[str], before: Sequence[Missing]) -> Missing:
    """Describe the miss of ``line`` with the differences from the nearest key, as `safecache explain` shows them."""
    found = _describe_miss(line)
    kind, _, reason = LABELS[line.label]
    if reason is Reason.DISABLED:
        return found
    if any((each.layer, each.key) == (found.layer, line.key) for each in before if line.key):
        return found._replace(why=f"{found.why}: {_AGAIN}")
    for cache in (root for place in caches for root in layout.find_triton_caches(place)):
        record = key_records.recall(Ref(kind, line.key, cache), line.name)
        if record is not None:
            explained = explanations.explain(record, cache, saved=True)
            if explained.absence is Reason.KEY_DIFFERS:
                return found._replace(why=f"{found.why}: {explained.cause}")
    return found


def _list_unlooked(new: dict[str, Kind], process: Process) -> list[Missing]:
    """Return what was compiled although no lookup missed, such as a rebuilt library."""
    if process.missed:
        return []
    named = {(kind, os.path.basename(_name_group(path))) for path, kind in new.items()}
    why = (
        "of its kind nothing was looked up in vain, and it is new in the cache: such as a library that was built again"
    )
    return [Missing(kind.word, name, "", why) for kind, name in sorted(named, key=lambda each: (each[0].word, each[1]))]


def list_caches(directories: Sequence[str] = ()) -> list[str]:
    """Return the existing caches of this environment, also vLLM's and SGLang's, and those of ``directories``."""
    environ = config.copy_environment()
    tops = [*levels.list_caches(environ), *filter(os.path.isdir, layout.sglang_cache_dir(environ))]
    tops += [os.path.realpath(each) for each in directories if os.path.isdir(each)]
    below = [cache for top in [layout.vllm_cache_dir(environ), *directories] for cache in layout.find_vllm_caches(top)]
    found: list[str] = []
    for path in (os.path.realpath(each) for each in [*tops, *below]):
        if not any(f"{path}/".startswith(f"{other}/") for other in found):
            found.append(path)
    return found


def _list_contents(directories: Sequence[str]) -> dict[tuple[str, int], Kind]:
    """The files that are compiled, in all caches, by path and inode: of a library that is rebuilt it is another."""
    found = {}
    for place in list_caches(directories):
        if os.path.basename(place) == layout.HEADERS_FOLDER:
            continue  # shared by all of the user's programs, whatever caches they have
        for group in inventory.take_inventory(place).groups:
            if group.kind in _COUNTED:
                files = [
                    file for file in group.files if group.kind is not Kind.NATIVE_CODE or file.path.endswith(_BUILT)
                ]
                if group.kind is Kind.KERNEL:
                    files = sorted(files)[:1]
                found.update({(file.path, file.inode): group.kind for file in files})
    return found


def _find_obstacles() -> list[str]:
    """Return what keeps the caches of this environment from being filled, as far as that can be tested."""
    environ = config.copy_environment()
    found = []
    if not config.current().enabled:
        found.append(f"SAFECACHE={environ.get('SAFECACHE', '')} is set: safecache does nothing, and notes no lookup")
    for place in dict.fromkeys((layout.inductor_cache_dir(environ), layout.triton_cache_dir(environ))):
        objection = directory_faults.probe(place)
        if objection is not None:
            found.append(f"nothing can be kept in the cache {place}: {objection}")
    return found


@contextmanager
def _forward_signals(signals: list[str]) -> Iterator[Callable[[int], None]]:
    """Context of a function that takes the leader of a session: it gets the signals that this process does.

    A terminal sends its own to this process alone, for the session is not the terminal's. Only a main thread may.
    """
    leader: list[int] = []
    waiting: list[int] = []

    def send(number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(leader[0], number)

    def forward(number: int, _: object) -> None:
        signals.append(signal.Signals(number).name)
        if leader:
            send(number)
        else:
            waiting.append(number)

    def tell(pid: int) -> None:
        leader.append(pid)
        for number in waiting:
            send(number)

    if threading.current_thread() is not threading.main_thread():
        yield tell
        return
    before = {number: signal.signal(number, forward) for number in _FORWARDED}
    try:
        yield tell
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _await_session(leader: int) -> int:
    """Wait for what else is in the session of this leader, which has ended; how many processes still run then."""
    end = time.monotonic() + _PATIENCE
    while True:
        left = sum(_find_session(pid) == leader for pid in os.listdir("/proc") if pid.isdecimal())
        if not left or time.monotonic() >= end:
            return left
        time.sleep(_TICK)


def _find_session(pid: str) -> int:
    """0 for a process that is gone, or has ended and is not waited for."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            state, _, _, session, *_ = file.read().rpartition(")")[2].split()
    except (OSError, ValueError):
        return 0
    return 0 if state == "Z" else int(session)
