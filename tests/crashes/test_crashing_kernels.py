"""The crashing kernels do crash Triton, each in a process without us, on every release."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from crashes.crash_names import DEADLY

SCRIPT = Path(__file__).with_name("crashing_kernels.py")


def test_each_kernel_ends_its_process_in_its_own_way(tmp_path):
    environment = {"TRITON_CACHE_DIR": str(tmp_path), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    command = [sys.executable, str(SCRIPT), "sound", *DEADLY, "empty-module", "recovered", "hang"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    endings = json.loads(done.stdout)
    code, said = endings.pop("recovered")
    assert code == 1 and "RuntimeError: PassManager::run failed" in said
    # A hang is many times as long as a sound one takes.
    expected = {"sound": 0, "empty-module": -signal.SIGSEGV, "hang": -signal.SIGXCPU}
    expected |= dict.fromkeys(DEADLY, -signal.SIGABRT)
    assert {name: code for name, (code, _) in endings.items()} == expected, endings
