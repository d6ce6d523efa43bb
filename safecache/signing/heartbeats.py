"""Heartbeats: proof that the holder of a lease lives and works for this user, where no kernel names that process.

A beat is a record under a trusted key's seal. It states its lease, its process, a count that rises, and the time. A
beat is no proof if it is forged, of another lease, older than FRESH seconds, or not followed by another beat.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from safecache.reporting import waits
from safecache.session import Part
from safecache.signing import side_records

__all__ = ["LAPSE", "Beats", "Listener", "Renewals"]

# Seconds without a beat after which a holder that was heard before gets nowhere; and by which two clocks may differ.
LAPSE, FRESH = 8.0, 60.0


class _State:
    def __init__(self) -> None:
        # Of this process: one for all of its leases, so that its death is found out once.
        self.process = secrets.token_hex(16)
        # Processes that were not heard in time.
        self.silent: set[str] = set()


_state: Part[_State] = Part(_State)


class Beats:
    """Beats of this process for the lease ``subject``, which it holds since ``began`` (seconds since the epoch)."""

    def __init__(self, subject: str, began: float) -> None:
        self._subject, self._began, self._process, self._count = subject, began, _state.now.process, 0

    def make_next(self) -> bytes | None:
        """Return the next beat, sealed; None for a process without a signing key, which can prove nothing."""
        self._count += 1
        stated = {"process": self._process, "count": self._count, "at": time.time(), "began": self._began}
        return side_records.seal_record(self._subject, stated)


class _Heard(NamedTuple):
    highest: int
    moment: float
    has_risen: bool


class Listener:
    """Listener to the beats of the lease ``subject``: keeps each process's highest count, and when that last rose.

    ``is_proven``: the last beat heard is a proof. ``began``: since when the holder says that it holds the lease, in
    seconds since the epoch.
    """

    def __init__(self, subject: str) -> None:
        self._subject = subject
        self._heard: dict[str, _Heard] = {}
        self.is_proven = False
        # Since when the holder says that it holds the lease, in seconds since the epoch.
        self.began: float | None = None

    def hear(self, unverified: bytes) -> bool:
        """Tell whether to wait on for the process that has left this beat; set ``is_proven`` if its count has risen.

        ``unverified``: the content of the lease. False for anything but a fresh beat, and once its count stands still
        for LAPSE seconds, or after the first beat for waits.UNPROVEN.
        """
        self.is_proven = False
        record, now = side_records.open_record(unverified, self._subject, own=False), time.monotonic()
        try:
            stated = record or {}
            process, count, at = str(stated["process"]), int(stated["count"]), float(stated["at"])
            self.began = float(stated["began"])
        except (KeyError, TypeError, ValueError, OverflowError):
            return False
        if process in _state.now.silent or not abs(time.time() - at) <= FRESH:
            return False
        before = self._heard.get(process)
        if before is None or count > before.highest:
            self._heard[process] = _Heard(count, now, before is not None)
        heard = self._heard[process]
        if now - heard.moment >= (LAPSE if heard.has_risen else waits.UNPROVEN):
            _state.now.silent.add(process)
            return False
        self.is_proven = heard.has_risen
        return True


class Renewals:
    """Renewals of each lease held, every ``period`` seconds, in a thread that ends with the last lease."""

    def __init__(self, name: str, period: float) -> None:
        self._name, self._period = name, period
        self._held: dict[object, Callable[[], None]] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def begin(self, lease: object, renew: Callable[[], None]) -> None:
        """Call ``renew`` once in each period until end() is called for ``lease``. ``renew`` must raise nothing."""
        with self._lock:
            self._held[lease] = renew
            if self._thread is None:
                self._thread = threading.Thread(target=self._renew_leases, name=self._name, daemon=True)
                self._thread.start()

    def end(self, lease: object) -> None:
        """Stop renewing ``lease``."""
        with self._lock:
            self._held.pop(lease, None)

    def end_all(self) -> None:
        """Stop renewing all leases; also for the child of a fork, which has no such thread."""
        self._held, self._thread, self._lock = {}, None, threading.Lock()

    def _renew_leases(self) -> None:
        held = self._held
        while True:
            time.sleep(self._period)
            with self._lock:
                if held is not self._held:
                    return
                if not held:
                    self._thread = None
                    return
                each = list(held.values())
            for renew in each:
                renew()
