"""The findings of a check, for programs and for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["SEVERITIES", "Finding", "error", "info", "ok", "warning", "worst"]

# From the least to the worst.
SEVERITIES = ("ok", "info", "warning", "error")


class Finding(NamedTuple):
    """``code`` names what was found, for programs; ``severity`` is one of SEVERITIES; the rest is for a person.

    ``remedy`` is, where possible, a line to paste into a shell, with capitals to fill in and hints in a comment.
    """

    code: str
    severity: str
    evidence: str
    remedy: str


def ok(code: str, evidence: str, remedy: str = "") -> Finding:
    """A check passed."""
    return Finding(code, "ok", evidence, remedy)


def info(code: str, evidence: str, remedy: str = "") -> Finding:
    """Worth knowing; nothing needs to be done."""
    return Finding(code, "info", evidence, remedy)


def warning(code: str, evidence: str, remedy: str) -> Finding:
    """Something works, but more slowly, or less safely, than it could."""
    return Finding(code, "warning", evidence, remedy)


def error(code: str, evidence: str, remedy: str) -> Finding:
    """Something does not work, or nothing is cached."""
    return Finding(code, "error", evidence, remedy)


def worst(findings: Iterable[Finding]) -> str:
    """The worst severity among them; "ok" if there are none."""
    return max((finding.severity for finding in findings), key=SEVERITIES.index, default="ok")
