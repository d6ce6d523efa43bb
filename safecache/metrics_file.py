"""The files of metrics of one process, in the format of prometheus_client's multiprocess mode."""

from __future__ import annotations

import os
import secrets
from bisect import bisect_left
from typing import Any

from safecache.lookups import Layer
from safecache.reasons import Reason

__all__ = ["Durations", "MetricsFile"]

_EVENTS = ("safecache_events", "event", "What safecache did to entries of compile caches and to compiled code.")
_PROBLEMS = ("safecache_problems", "reason", "What was refused, not read or not written, and hooks that are not on.")
_LOOKUPS = ("safecache_lookups", "What lookups of compile caches came to, and why where it was no hit.")
_SECONDS = ("safecache_compile_seconds", "How long the compiles by Triton took that ran in processes of their own.")
_LAYERS = frozenset(layer.value for layer in Layer)
_REASONS = frozenset(reason.value for reason in Reason)
# Seconds: most kernels take tenths of one, large ones minutes.
_BOUNDS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0, 120.0, 300.0, float("inf"))
# Bytes for about three hundred counters.
_SIZE = 1 << 16


class Durations:
    """A histogram: how many of what was added are at most each bound, and above the one before."""

    def __init__(self) -> None:
        self.total = 0.0
        self.buckets = dict.fromkeys(_BOUNDS, 0)

    def add(self, seconds: float) -> None:
        """Count one more."""
        self.total += seconds
        self.buckets[_BOUNDS[bisect_left(_BOUNDS, seconds)]] += 1


class MetricsFile:
    """A file for the counters, and one for the histogram once there is something in it. Raises OSError, throughout."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._kinds: dict[str, Any] = {}

    def write_count(self, name: str, value: int) -> None:
        """State how often this process has counted ``name``: a value of Count or Reason, or a label of lookups."""
        layer, _, rest = name.partition(" ")
        if layer in _LAYERS:
            outcome, _, reason = rest.partition(": ")
            metric, text = _LOOKUPS
            labels = {"cache": layer, "outcome": outcome, "reason": reason}
            self._write("counter", metric, f"{metric}_total", labels, text, value)
            return
        metric, label, text = _PROBLEMS if name in _REASONS else _EVENTS
        self._write("counter", metric, f"{metric}_total", {label: name}, text, value)

    def write_durations(self, durations: Durations) -> None:
        """State the durations that this process has measured."""
        from prometheus_client.utils import floatToGoString

        metric, text = _SECONDS
        self._write("histogram", metric, f"{metric}_sum", {}, text, durations.total)
        for bound, number in durations.buckets.items():
            self._write("histogram", metric, f"{metric}_bucket", {"le": floatToGoString(bound)}, text, number)

    def close(self) -> None:
        """Let go of the files, which stay."""
        for values in self._kinds.values():
            values.close()

    def _write(self, kind: str, metric: str, name: str, labels: dict[str, str], text: str, value: float) -> None:
        from prometheus_client.mmap_dict import mmap_key

        if kind not in self._kinds:
            self._kinds[kind] = _open(self._directory, kind)
        self._kinds[kind].write_value(mmap_key(metric, name, list(labels), list(labels.values()), text), value, 0.0)


def _open(directory: str, kind: str) -> Any:
    from prometheus_client.mmap_dict import MmapedDict

    # It begins with the kind, as its readers expect, and no other process has the rest: a pid may come again.
    path = os.path.join(directory, f"{kind}_safecache-{os.getpid()}-{secrets.token_hex(4)}.db")
    new = f"{path}.new"
    descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        # A page that the disk has no room for would be a SIGBUS, later.
        os.posix_fallocate(descriptor, 0, _SIZE)
    except OSError:
        os.unlink(new)
        raise
    finally:
        os.close(descriptor)
    values = MmapedDict(new)
    # Empty, it would fail who reads it.
    os.rename(new, path)
    return values
