"""The tests that the guide offers for the CI of a server pass as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from conftest import SOURCE

SMOKE = """
import safecache, torch
compiled = torch.compile(lambda x: (x.sin() + 1).relu())
assert compiled(torch.zeros(64)).sum() == 64
"""


def test_tests_of_the_guide_pass(tmp_path):
    text = (SOURCE / "safecache" / "guide" / "servers.md").read_text()
    (tmp_path / "test_server.py").write_text(re.search(r"```python\n(.*?)```", text, re.DOTALL)[1])
    (tmp_path / "smoke.py").write_text(SMOKE)
    path = os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "test_server.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0 and "2 passed" in done.stdout, (done.stdout[-3000:], done.stderr[-1000:])
