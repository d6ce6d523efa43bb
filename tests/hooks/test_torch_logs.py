"""TORCH_LOGS=+safecache shows all that safecache has to say, in torch's own format, as for any module."""

from __future__ import annotations

import pytest
from conftest import NEEDS_TORCH, python

REPORT = """
import os, torch
from safecache.reporting import events
from safecache.reporting.kinds import Reason
for _ in range(2):
    events.report(Reason.DAMAGED, "it is damaged.")
print(os.getpid())
"""


@NEEDS_TORCH
@pytest.mark.parametrize(
    ("setting", "levels"), [("+safecache", "WV"), ("-dynamo", "")], ids=["asked-for", "of-others-alone"]
)
def test_torch_logs_shows_what_is_not_said_twice(setting, levels):
    done = python(REPORT, env={"TORCH_LOGS": setting, "RANK": "3", "SAFECACHE": "1"})
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if "safecache: it is damaged. [damaged]" in line]
    assert len(lines) == max(len(levels), 1), done.stderr
    assert all(line.endswith(f"[rank 3, pid {done.stdout.strip()}]") for line in lines)
    assert "".join(line[0] for line in lines if "safecache/reporting/events.py:" in line) == levels
