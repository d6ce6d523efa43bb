"""Many processes at once, on hot keys and their own: every value is its key's, and nothing good is moved away or left over.

The whole of it, 64 processes with 1,000 operations each: ``python tests/faults/store/load.py``.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_values_are_right_whoever_else_writes_damages_and_moves_away():
    script = Path(__file__).with_name("load.py")
    done = subprocess.run(
        [sys.executable, str(script), "--processes", "8", "--operations", "200"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(f'"{what}": ' in done.stdout for what in ("put", "hit", "miss", "damaged", "quarantined")), done.stdout
