"""The versions that are installed, against those that safecache knows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from safecache._version import __version__
from safecache.doctor import finding
from safecache.doctor.finding import Finding
from safecache.patching import targets
from safecache.signing import provenance

__all__ = ["check"]

_KNOWN = {"torch": (targets.TORCH_FROM, targets.TORCH_UNTIL), "triton": (targets.TRITON_FROM, targets.TRITON_UNTIL)}


def check(_: Mapping[str, str]) -> Iterator[Finding]:
    """A torch or Triton that is missing or that safecache does not know."""
    installed = provenance.describe()
    if not installed["torch"]:
        yield finding.error("no-torch", "torch is not installed where this Python looks.", "pip install torch")
    for name, (first, end) in _KNOWN.items():
        release = _release(installed[name])
        if installed[name] and not first <= release < end:
            known = f"{_text(first)} to {end[0]}.{end[1] - 1}"
            evidence = f"{name} {installed[name]} is none of {known}, on which safecache {__version__} was tested: "
            evidence += "hooks whose functions have changed stand down."
            yield finding.warning(f"unknown-{name}", evidence, "pip install --upgrade safecache")
    said = ", ".join(f"{name} {installed[name] or 'none'}" for name in ("torch", "triton", "python"))
    yield finding.ok("versions", f"safecache {__version__}, {said}, {installed['machine']}.")


def _release(version: str) -> tuple[int, int]:
    digits = re.match(r"(\d+)\.(\d+)", version)
    return (int(digits[1]), int(digits[2])) if digits else (0, 0)


def _text(release: tuple[int, int]) -> str:
    return f"{release[0]}.{release[1]}"
