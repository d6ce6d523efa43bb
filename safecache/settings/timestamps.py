"""Points in time as key files write them (RFC 3339) and as they are compared (seconds since the epoch)."""

from __future__ import annotations

from datetime import datetime, timezone

__all__ = ["checked", "parse", "write", "write_stamp"]

_LATEST = 253402300799.0  # the end of the year 9999


def parse(text: str) -> float:
    """Seconds since the epoch of an RFC 3339 time, or of a date alone, which means its first moment in UTC.

    Raises ValueError, also for a time without an offset, which is ambiguous.
    """
    # Python 3.10 does not parse "Z".
    moment = datetime.fromisoformat(text[:-1] + "+00:00" if text[-1:] in ("Z", "z") else text)
    if moment.tzinfo is None:
        if len(text) != len("2000-01-01"):
            raise ValueError(f"{text!r} has no offset from UTC")
        moment = moment.replace(tzinfo=timezone.utc)
    return moment.timestamp()


def checked(value: object) -> float:
    """``value`` as seconds since the epoch. Raises ValueError unless it is a number that write() accepts."""
    # A bool is an int, and NaN compares as false with everything.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value <= _LATEST:
        raise ValueError(f"{value!r} is no moment")
    return float(value)


def write(seconds: float) -> str:
    """Seconds since the epoch in RFC 3339, in UTC, rounded down to the second."""
    # Not strftime(), which writes the year 30 with two digits.
    return datetime.fromtimestamp(int(seconds), timezone.utc).replace(tzinfo=None).isoformat() + "Z"


def write_stamp(seconds: float) -> str:
    """As write(), for any time from a file system: one out of range becomes the first or the last moment."""
    return write(min(max(seconds, 0.0), _LATEST))
