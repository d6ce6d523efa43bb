"""Processes that compile at the same time, on one host or on several."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from conftest import SOURCE

__all__ = ["INFERENCE", "TRAINING", "Together", "said", "total"]

CODE = f"""
import json, logging, sys
sys.path.insert(0, {str(SOURCE / "tests")!r})
import safecache, torch
from torch._dynamo.utils import counters
warnings = []
handler = logging.Handler()
handler.emit = lambda record: warnings.append(record.getMessage())
logging.getLogger("safecache").addHandler(handler)
{{prepare}}
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU(), torch.nn.Softmax(-1))
x = torch.randn(4, 16)
print("ready", flush=True)
input()
{{run}}
found = dict(counters["inductor"]) | dict(counters["aot_autograd"])
print(json.dumps(dict(y=y.double().sum().item(), found=found, warnings=warnings, stats=safecache.stats())))
"""
INFERENCE = "with torch.no_grad():\n    y = torch.compile(model)(x)"
TRAINING = "y = torch.compile(model)(x).sum(); y.backward()"


class Together:
    """Processes that import first, and begin at the same time."""

    def __init__(self, home, number, run, prepare="", homes=(), **environment) -> None:
        """``homes``: of the hosts of each, if not all are on that of ``home``."""
        environment = os.environ | {"TMPDIR": str(home.base), "OMP_NUM_THREADS": "1"} | environment
        environment["PYTHONPATH"] = str(SOURCE)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        code = CODE.format(prepare=prepare, run=run)
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-c", code],
                env=environment | each.environment | {"RANK": str(rank)},
                text=True,
                **pipes,
            )
            for rank, each in enumerate(homes or [home] * number)
        ]

    def __enter__(self):
        return self

    def begin(self) -> None:
        assert [process.stdout.readline() for process in self.processes] == ["ready\n"] * len(self.processes)
        for process in self.processes:
            process.stdin.write("\n")
            process.stdin.flush()

    def answers(self, killed=()):
        """Of all that were not killed."""
        answers = []
        for process in self.processes:
            out, err = process.communicate(timeout=280)
            if process not in killed:
                assert process.returncode == 0, err
                answers.append(json.loads(out.splitlines()[-1]))
        return answers

    def __exit__(self, *_) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


def total(answers, name) -> int:
    return sum(answer["found"].get(name, 0) for answer in answers)


def said(answers):
    """All lines but those of waits for a process or a lock, which a busy machine brings."""
    return [line for answer in answers for line in answer["warnings"] if "safecache: waiting for" not in line]
