"""Export counters to Prometheus, of this process and of all processes of a run.

Each process writes its own file, in the format of prometheus_client's multiprocess mode. If that mode is on, the file
lies beside the server's, which sums up all of them; otherwise in a directory of the run, which a collector of ours sums
up. A process that counts nothing has no file, and counting makes no system call.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
import secrets
import shutil
import sys
import tempfile
from bisect import bisect_left
from typing import Any

from safecache import ports
from safecache.ports import Counted, plugs
from safecache.reporting import events
from safecache.reporting.kinds import LOOKED_UP, Count, Reason
from safecache.session import Part, call_at_exit
from safecache.settings import config

__all__ = ["Durations", "MetricsFile", "register", "show", "start"]

_EVENTS = ("safecache_events", "event", "What safecache did to entries of compile caches and to compiled code.")
_PROBLEMS = ("safecache_problems", "reason", "What was refused, not read or not written, and hooks that are not on.")
_LOOKUPS = ("safecache_lookups", "What lookups of compile caches came to, and why where it was no hit.")
_SECONDS = ("safecache_compile_seconds", "How long the compiles by Triton took that ran in processes of their own.")
_GROUPS = ("safecache_remote_groups", "Groups of files that were asked of the remote cache, or sent to it.")
_BYTES = ("safecache_remote_bytes", "Bytes that came from the remote cache, and that went there.")
_REQUESTS = ("safecache_remote_requests", "Requests to the remote cache that a compile has waited for.")
_WAITED = ("safecache_remote_wait_seconds", "How long compiles have waited for the remote cache.")
_LEFT = ("safecache_remote_left_alone", "How often the remote cache was left alone for a while, since it had failed.")
# By what is counted of the remote tier: the metric with its text, its labels, and what one is worth.
_REMOTE: dict[str, tuple[tuple[str, str], dict[str, str], float]] = {
    Count.REMOTE_HIT.value: (_GROUPS, {"outcome": "fetched"}, 1),
    Count.REMOTE_MISS.value: (_GROUPS, {"outcome": "not there"}, 1),
    Count.REMOTE_SENT.value: (_GROUPS, {"outcome": "sent"}, 1),
    Count.REMOTE_UNSENT.value: (_GROUPS, {"outcome": "not sent"}, 1),
    Count.REMOTE_RECEIVED.value: (_BYTES, {"direction": "received"}, 1),
    Count.REMOTE_GIVEN.value: (_BYTES, {"direction": "sent"}, 1),
    Count.REMOTE_ASKED.value: (_REQUESTS, {}, 1),
    Count.REMOTE_WAITED.value: (_WAITED, {}, 1e-6),
    Count.REMOTE_LEFT.value: (_LEFT, {}, 1),
}
_CACHES = frozenset(kind.word for kind in LOOKED_UP)
_REASONS = frozenset(reason.value for reason in Reason)
# Seconds: most kernels take tenths of one, large ones minutes.
_BOUNDS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0, 120.0, 300.0, float("inf"))
# Bytes: room for about three hundred counters.
_SIZE = 1 << 16


class Durations:
    """Histogram of seconds: for each bound, how many values are at most that and above the previous bound."""

    def __init__(self) -> None:
        self.total = 0.0
        self.buckets = dict.fromkeys(_BOUNDS, 0)

    def add(self, seconds: float) -> None:
        """Count one more duration."""
        self.total += seconds
        self.buckets[_BOUNDS[bisect_left(_BOUNDS, seconds)]] += 1


class MetricsFile:
    """Files of counters and of the histogram, each created at its first value. Writing raises OSError."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._kinds: dict[str, Any] = {}

    def write_count(self, name: str, value: int) -> None:
        """Write how often this process has counted ``name``: a value of Count or Reason, or a label of lookups."""
        if name in _REMOTE:
            (metric, text), labels, unit = _REMOTE[name]
            self._write("counter", metric, f"{metric}_total", labels, text, value * unit)
            return
        cache, _, rest = name.partition(" ")
        if cache in _CACHES:
            outcome, _, reason = rest.partition(": ")
            metric, text = _LOOKUPS
            labels = {"cache": cache, "outcome": outcome, "reason": reason}
            self._write("counter", metric, f"{metric}_total", labels, text, value)
            return
        metric, label, text = _PROBLEMS if name in _REASONS else _EVENTS
        self._write("counter", metric, f"{metric}_total", {label: name}, text, value)

    def write_durations(self, durations: Durations) -> None:
        """Write the durations that this process has measured."""
        from prometheus_client.utils import floatToGoString

        metric, text = _SECONDS
        self._write("histogram", metric, f"{metric}_sum", {}, text, durations.total)
        for bound, number in durations.buckets.items():
            self._write("histogram", metric, f"{metric}_bucket", {"le": floatToGoString(bound)}, text, number)

    def close(self) -> None:
        """Close the files; they are kept."""
        for values in self._kinds.values():
            values.close()

    def _write(self, kind: str, metric: str, name: str, labels: dict[str, str], text: str, value: float) -> None:
        from prometheus_client.mmap_dict import mmap_key

        if kind not in self._kinds:
            self._kinds[kind] = _create_file(self._directory, kind)
        self._kinds[kind].write_value(mmap_key(metric, name, list(labels), list(labels.values()), text), value, 0.0)


def _create_file(directory: str, kind: str) -> Any:
    from prometheus_client.mmap_dict import MmapedDict

    # Starts with the kind, as readers expect. The random part makes it unique: pids are reused.
    path = os.path.join(directory, f"{kind}_safecache-{os.getpid()}-{secrets.token_hex(4)}.db")
    new = f"{path}.new"
    descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        # Otherwise a full disk would cause a SIGBUS at a later write.
        os.posix_fallocate(descriptor, 0, _SIZE)
    except OSError:
        os.unlink(new)
        raise
    finally:
        os.close(descriptor)
    values = MmapedDict(new)
    # Renamed only now: an empty file makes its readers fail.
    os.rename(new, path)
    return values


_PACKAGE = "prometheus_client"
_REMEDY = "pip install 'safecache[metrics]'"


class _Program:
    """State that a forked child and reset() keep."""

    is_started = is_on = False
    # The pid of the process that made the directory of the run; 0 if the directory is inherited.
    maker = 0
    registries: tuple[Any, ...] = ()


_program = _Program()


class _State:
    def __init__(self) -> None:
        self.file: MetricsFile | None = None
        self.durations = Durations()
        # What the parent had counted at the fork, which is in the parent's own file.
        self.before: dict[str, int] = {}

    def end(self) -> None:
        if self.file is not None:
            self.file.close()
        self.file = None

    def make_child_state(self) -> _State:
        self.end()
        state = _State()
        state.before = events.read_counters()
        return state


# A forked child writes its own file.
_state: Part[_State] = Part(_State, _State.make_child_state)


def start() -> None:
    """Count for Prometheus in this process and its children from now on. Idempotent.

    Without prometheus_client or a directory for temporary files, nothing is counted, and one warning says so.
    """
    if _program.is_started:
        return
    _program.is_started = True
    if importlib.util.find_spec(_PACKAGE) is None:
        events.log_line(logging.WARNING, f"safecache: SAFECACHE_METRICS=1 needs {_PACKAGE}: {_REMEDY}")
        return
    # An inherited directory may be on another node: Ray copies variables.
    if not os.path.isdir(config.metrics_directory()):
        try:
            directory = tempfile.mkdtemp(prefix="safecache-metrics-")
        except OSError as error:
            _give_up(error)
            return
        config.set_metrics_directory(directory)
        _program.maker = os.getpid()
        call_at_exit(functools.partial(_remove_directory, directory, _program.maker))
    _program.is_on = True
    ports.observe(Counted, _observe_count)
    call_at_exit(_end_counting)


def show() -> None:
    """Call register() if this process counts; log a failure as a warning instead of raising."""
    try:
        if _program.is_on:
            register()
    except Exception as error:
        _give_up(error)


def _give_up(error: Exception) -> None:
    ports.stop_observing(Counted, _observe_count)
    text = f"{type(error).__name__}: {error}"
    events.log_line(logging.WARNING, f"safecache: there are no metrics of this process: {text}")


def register(registry: Any = None) -> None:
    """Make ``registry``, by default prometheus_client's own, show what all processes of this run have counted.

    Does nothing in prometheus_client's multiprocess mode, whose MultiProcessCollector shows the counters anyway, or if
    start() failed. Idempotent. Raises ImportError without prometheus_client.
    """
    try:
        from prometheus_client import REGISTRY, multiprocess
    except ImportError as error:
        raise ImportError(f"safecache: metrics need {_PACKAGE}: {_REMEDY}") from error
    start()
    if not _program.is_on:
        return
    shown = REGISTRY if registry is None else registry
    if not config.multiprocess_directory() and not any(known is shown for known in _program.registries):
        _program.registries += (shown,)
        multiprocess.MultiProcessCollector(shown, config.metrics_directory())
    if plugs.stats():
        _write_counts()


def _observe_count(counted: Counted) -> None:
    _write_counts(counted.name, counted.seconds)


def _write_counts(name: str = "", seconds: float | None = None) -> None:
    """Write the count of ``name``, and a duration in ``seconds`` if there is one; the first time, all counts."""
    with _state.lock:
        state = _state.now
        if seconds is not None:
            state.durations.add(seconds)
        # The first import of prometheus_client fixes whether its multiprocess mode is on, and a server (SGLang) decides
        # that later than this in its first process. What is counted until then is written afterwards.
        is_undecided = _PACKAGE not in sys.modules and _program.maker == os.getpid()
        if state.file is None and is_undecided and not config.multiprocess_directory():
            return
        counted, is_first = plugs.stats(), state.file is None or not name
        try:
            state.file = state.file or MetricsFile(config.multiprocess_directory() or config.metrics_directory())
            for each in counted if is_first else [name]:
                state.file.write_count(each, counted[each] - state.before.get(each, 0))
            if seconds is not None or (is_first and state.durations.total):
                state.file.write_durations(state.durations)
        except Exception as error:
            # A full disk or an unknown version of prometheus_client must not fail a compile.
            _give_up(error)


def _end_counting() -> None:
    ports.stop_observing(Counted, _observe_count)
    with _state.lock:
        _state.now.end()


def _remove_directory(directory: str, maker: int) -> None:
    if os.getpid() == maker:
        shutil.rmtree(directory, ignore_errors=True)
