"""The findings of a check, for programs and for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["SEVERITIES", "UNSHOWN", "Difference", "Finding", "error", "info", "ok", "warning", "worst"]

# From the least to the worst.
SEVERITIES = ("ok", "info", "warning", "error")
# In place of a value in a Difference.
UNSHOWN = "(not shown)"


class Finding(NamedTuple):
    """``code`` names what was found, for programs; ``severity`` is one of SEVERITIES; the rest is for a person.

    ``remedy`` is, where possible, a line to paste into a shell, with capitals to fill in and hints in a comment.
    """

    code: str
    severity: str
    evidence: str
    remedy: str


class Difference(NamedTuple):
    """A finding of a cache that was filled elsewhere: ``what`` differs, as it was there and as it is here.

    ``misses``: whether entries miss by it, or only may.
    """

    what: str
    baked: str
    here: str
    remedy: str
    misses: bool = True

    @property
    def severity(self) -> str:
        """Severity, one of SEVERITIES."""
        return "error" if self.misses else "info"

    def __str__(self) -> str:
        if self.baked == self.here:
            return f"{self.what} {'differs' if self.misses else 'may differ'} {UNSHOWN}"
        return f'{self.what} differs: baked "{self.baked}", here "{self.here}"'


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


def worst(findings: Iterable[Finding | Difference]) -> str:
    """Return the worst severity among ``findings``; "ok" if there are none."""
    return max((finding.severity for finding in findings), key=SEVERITIES.index, default="ok")
