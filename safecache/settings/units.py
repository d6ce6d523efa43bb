"""Sizes, ages and times as people write them: ``10G``, ``500MiB``, ``30d``, and RFC 3339 for seconds since the epoch.

No datetime before it is needed: each process loads this.
"""

from __future__ import annotations

__all__ = [
    "AGES",
    "SIZES",
    "check_time",
    "parse_age",
    "parse_count",
    "parse_size",
    "parse_time",
    "write_age",
    "write_count",
    "write_size",
    "write_stamp",
    "write_time",
]

# As in ccache and Kubernetes: without the i, a prefix is a power of 1000.
SIZES = "a number of bytes, or one with k, M, G, T (powers of 1000) or Ki, Mi, Gi, Ti (of 1024) and perhaps B"
AGES = "a number with s, min, h, d or w"
_PREFIXES = "kmgt"
_SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
# A larger number limits nothing; infinity and NaN are refused too.
_MOST = 1 << 62
_LATEST = 253402300799.0  # the end of the year 9999


def parse_size(text: str) -> int:
    """Parse a size into bytes. Raises ValueError for what SIZES does not describe, and for 0, which is ambiguous."""
    number, unit = _split_unit(text)
    unit = unit.lower().removesuffix("b")
    base = 1024 if unit.endswith("i") else 1000
    prefix = unit.removesuffix("i")
    if unit and (len(prefix) != 1 or prefix not in _PREFIXES):
        raise ValueError(text)
    return _check_positive(number * base ** (_PREFIXES.index(prefix) + 1 if prefix else 0), text)


def parse_age(text: str) -> int:
    """Parse an age into seconds. Raises ValueError for what AGES does not describe, and below one second."""
    number, unit = _split_unit(text)
    if unit not in _SECONDS:
        raise ValueError(text)
    return _check_positive(number * _SECONDS[unit], text)


def parse_count(text: str) -> int:
    """Parse a whole number from 1. Raises ValueError for anything else."""
    if not text.isascii() or not text.strip().isdecimal():
        raise ValueError(text)
    return _check_positive(int(text), text)


def _split_unit(text: str) -> tuple[float, str]:
    text = text.strip()
    digits = text.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    if not digits.isascii() or not digits.strip().replace(".", "", 1).isdecimal():
        raise ValueError(text)
    return float(digits), text[len(digits) :]


def _check_positive(number: float, text: str) -> int:
    if not 1 <= number <= _MOST:
        raise ValueError(text)
    return int(number)


def write_count(number: int, noun: str, plural: str = "") -> str:
    """Return such as ``1 file`` or ``2 files``; with ``plural`` instead of ``noun`` and an s, such as ``2 entries``."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


def write_size(size: int) -> str:
    """Return a size in bytes as text, such as ``4.2 MB``, in powers of 1000."""
    value, unit = float(size), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 999.95:
            break
        value, unit = value / 1000, larger
    return f"{size} B" if unit == "B" else f"{value:.1f} {unit}"


def write_age(seconds: float) -> str:
    """Return an age in seconds as text, such as ``3 d``: in the largest unit that it fills, rounded down."""
    unit = next((unit for unit in ("d", "h", "min") if seconds >= _SECONDS[unit]), "s")
    return f"{int(seconds // _SECONDS[unit])} {unit}"


def parse_time(text: str) -> float:
    """Parse an RFC 3339 time, or a date alone (its first moment in UTC), into seconds since the epoch.

    Raises ValueError, also for a time without an offset, which is ambiguous.
    """
    from datetime import datetime, timezone

    # Python 3.10 does not parse "Z".
    moment = datetime.fromisoformat(text[:-1] + "+00:00" if text[-1:] in ("Z", "z") else text)
    if moment.tzinfo is None:
        if len(text) != len("2000-01-01"):
            raise ValueError(f"{text!r} has no offset from UTC")
        moment = moment.replace(tzinfo=timezone.utc)
    return moment.timestamp()


def check_time(value: object) -> float:
    """Return ``value`` as seconds since the epoch. Raises ValueError unless it is a number write_time() accepts."""
    # A bool is an int, and NaN compares as false with everything.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value <= _LATEST:
        raise ValueError(f"{value!r} is no moment")
    return float(value)


def write_time(seconds: float) -> str:
    """Return seconds since the epoch as an RFC 3339 time in UTC, rounded down to the second."""
    from datetime import datetime, timezone

    # Not strftime(), which writes the year 30 with two digits.
    return datetime.fromtimestamp(int(seconds), timezone.utc).replace(tzinfo=None).isoformat() + "Z"


def write_stamp(seconds: float) -> str:
    """Return write_time() of any time from a file system: one out of range becomes the first or the last moment."""
    return write_time(min(max(seconds, 0.0), _LATEST))
