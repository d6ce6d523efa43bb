"""What is installed of the libraries that only some need: looked for without importing it, so that a start can tell."""

from __future__ import annotations

import importlib.machinery
import sys

__all__ = ["is_installed", "line"]


def is_installed(name: str) -> bool:
    """Whether a module of this name could be imported."""
    if name in sys.modules:
        return sys.modules[name] is not None
    if importlib.machinery.PathFinder.find_spec(name) is not None:
        return True
    from importlib.util import find_spec  # takes a millisecond to import, and asks other finders too

    return find_spec(name) is not None


def line(extra: str) -> str:
    """What installs the libraries of this extra of ours."""
    return f"pip install 'safecache[{extra}]'"
