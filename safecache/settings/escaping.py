"""Text that others chose, such as the names of files in a cache, where a person or a terminal reads it."""

from __future__ import annotations

__all__ = ["printable"]


def printable(text: str) -> str:
    """``text`` with an escape for whatever a terminal would obey, or takes for the end of a line or another direction.

    A control character could forge a line of a log, and one that reverses the direction of writing, what it says.
    Applied again it changes nothing.
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
