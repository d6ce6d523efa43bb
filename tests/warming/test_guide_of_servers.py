"""The tests that the guide offers for the CI of a server pass as they stand there."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap

from conftest import SOURCE

from warming import programs


def test_tests_of_the_guide_pass(zygote, tmp_path, monkeypatch):
    """With each start of the server in a fork of a process that has torch."""
    smoke = tmp_path / "smoke.py"
    smoke.write_text(textwrap.dedent(programs.COMPILED))
    codes = []

    def run(command, env):
        assert command == [sys.executable, "smoke.py"]
        codes.append(int(not zygote.run(programs.run_in_fork, env, path=str(smoke)).ok))
        return subprocess.CompletedProcess(command, codes[-1])

    monkeypatch.setattr(subprocess, "run", run)
    guide = {}
    exec(re.search(r"```python\n(.*?)```", (SOURCE / "safecache/guide/servers.md").read_text(), re.DOTALL)[1], guide)
    tests = [name for name in guide if name.startswith("test_")]
    for name in tests:
        guide[name](tmp_path / name)
    assert len(tests) == 2 and codes == [0, 0, 0, 1, 0]
