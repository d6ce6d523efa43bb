"""Processes that compile the same at once never meet a file of code before its record."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from conftest import SOURCE

pytestmark = pytest.mark.default_release

pytest.importorskip("triton")

PROCESSES = 3
CODE = f"""
import sys
sys.path.insert(0, {str(SOURCE / "tests")!r})
import json, logging, safecache
from scenes import kernel_scenes, model_scenes
warnings = []
handler = logging.Handler()
handler.emit = lambda record: warnings.append(record.getMessage())
logging.getLogger("safecache").addHandler(handler)
print("ready", flush=True)
input()
for _ in range(3):
    kernel_scenes.compile_kernel()
kernel_scenes.build_module()
model_scenes.compile_model()
print(json.dumps(dict(warnings=warnings, stats=safecache.stats())))
"""


def test_strict_processes_that_compile_at_once_refuse_nothing(home):
    environment = os.environ | home.environment | {"SAFECACHE_STRICT": "1", "TMPDIR": str(home.base)}
    environment |= {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    started = [
        subprocess.Popen([sys.executable, "-c", CODE], env=environment, text=True, **pipes) for _ in range(PROCESSES)
    ]
    try:
        assert [process.stdout.readline() for process in started] == ["ready\n"] * PROCESSES
        for process in started:
            process.stdin.write("\n")
            process.stdin.flush()
        said = [process.communicate(timeout=250) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    for process, (out, err) in zip(started, said, strict=True):
        assert process.returncode == 0, err
        answer = json.loads(out.splitlines()[-1])
        assert answer["warnings"] == [] and "unsealed" not in answer["stats"], answer
