"""The findings of a check, for programs and for people."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

from safecache.reporting import events
from safecache.reporting.kinds import Reason

__all__ = ["SEVERITIES", "UNSHOWN", "Difference", "Finding", "error", "find_worst", "info", "ok", "warning"]

# From the least to the worst.
SEVERITIES = ("ok", "info", "warning", "error")
# In place of a value in a Difference.
UNSHOWN = "(not shown)"


class Finding(NamedTuple):
    """``code`` names the finding, and its section of the guide's page; ``severity`` is one of SEVERITIES.

    ``what``: subject and state. ``why``: the cause, then a sentence on the consequence. ``remedy``: a line to paste
    into a shell, with capitals to fill in and hints in a comment; "" if there is nothing to do.
    """

    severity: str
    code: str
    what: str
    why: str
    remedy: str = ""

    @property
    def evidence(self) -> str:
        """Text of everything but the remedy."""
        return f"{self.what}: {self.why}."

    @property
    def text(self) -> str:
        """Message of one line, as events.report() forms it."""
        remedy = f"Help: {self.remedy}" if self.remedy else ""
        page = "" if self.severity == "ok" else f" (see safecache help doctor#{self.code})"
        return events.compose_message(self.what, self.code, self.why, f"{remedy}{page}".lstrip())


class Difference(NamedTuple):
    """Finding about a cache that was filled elsewhere: ``what`` differs, as it was there and as it is here.

    ``misses``: whether entries miss by it, or only may. ``reason``: what their lookups then report. ``why``: the cause
    in place of both values, after ``state``.
    """

    what: str
    baked: str
    here: str
    remedy: str
    misses: bool = True
    reason: Reason = Reason.KEY_DIFFERS
    state: str = "differs"
    why: str = ""

    @property
    def severity(self) -> str:
        """Severity, one of SEVERITIES."""
        return "error" if self.misses else "info"

    @property
    def text(self) -> str:
        """Message of one line, as events.report() forms it."""
        shown = f'baked "{self.baked}", here "{self.here}"' if self.baked != self.here else "the values are not shown"
        effect = "Recompiling here" if self.misses else "Entries may hit all the same"
        remedy = f"Help: {self.remedy} (see {self.reason.help})"
        return events.compose_message(
            f"{self.what} {self.state}", self.reason.value, f"{self.why or shown}. {effect}", remedy
        )


ok = partial(Finding, "ok")  # a check passed
info = partial(Finding, "info")  # worth knowing; nothing needs to be done
warning = partial(Finding, "warning")  # something works, but more slowly, or less safely, than it could
error = partial(Finding, "error")  # something does not work, or nothing is cached


def find_worst(findings: Iterable[Finding | Difference]) -> str:
    """Return the worst severity among ``findings``; "ok" if there are none."""
    return max((finding.severity for finding in findings), key=SEVERITIES.index, default="ok")
