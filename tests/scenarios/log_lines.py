"""The lines of safecache in the log of several processes."""

from __future__ import annotations

import re

_LINE = re.compile(r"^safecache: .+? \[(?P<reason>[A-Za-z ]+)\]:? \S.+ \(logged once.*pid (?P<pid>\d+)\]$")


def reasons(log: str) -> list[list[str]]:
    """Of each process that has said something, the reasons; each line has a cause, a remedy and its process."""
    by_process: dict[str, list[str]] = {}
    for line in log.splitlines():
        # On a busy machine a rank says for whom it waits.
        if line.startswith("safecache: ") and not line.startswith("safecache: waiting for "):
            match = _LINE.match(line)
            assert match, f"no cause, no remedy or no process: {line}"
            by_process.setdefault(match["pid"], []).append(match["reason"])
    return [sorted(said) for said in by_process.values()]
