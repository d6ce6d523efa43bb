"""Text from files that others wrote, on a terminal."""

from __future__ import annotations

__all__ = ["printable"]


def printable(text: str) -> str:
    """Without what a terminal would obey: the names in a file are whatever its author chose."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
