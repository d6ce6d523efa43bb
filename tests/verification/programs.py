"""A program with a custom operator in a module beside it, whose schema can be changed without its cache key being."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

from conftest import SOURCE

from safecache.testing import isolated

OPERATORS = """
    import torch

    @torch.library.custom_op("verified::store", mutates_args={mutates})
    def store(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        {body}
        return x + 1

    @store.register_fake
    def _(x, out):
        return torch.empty_like(x)
    """
PROGRAM = """
    import json, os, sys
    import safecache
    import torch
    import operators

    if "SAFECACHE_VERIFY" in os.environ:
        from safecache.verification import background
        background.DEADLINE = float(os.environ.get("SECONDS", 250))

    def stored(x):
        out = torch.zeros_like(x)
        return torch.ops.verified.store(x, out) + out

    def trained(x):
        return torch.relu(x @ x.T).sum()

    with torch.no_grad():
        torch.compile(stored)(torch.ones(3))
        if "one" not in sys.argv:
            torch.compile(stored, dynamic=True)(torch.ones(4, 5))
    if "one" not in sys.argv:
        torch.compile(trained)(torch.ones(3, 3, requires_grad=True)).backward()
    if "SAFECACHE_VERIFY" in os.environ:
        assert background.wait(280)
    print(json.dumps(safecache.stats()))
    """


class Program:
    """``fixed``: whether the operator says what it mutates."""

    def __init__(self, directory):
        self.directory = directory
        self.cache = directory / "caches" / "inductor"
        self.environment = os.environ | isolated(str(directory / "caches"))
        self.environment |= {"PYTHONPATH": str(SOURCE), "TORCHINDUCTOR_COMPILE_THREADS": "1", "OMP_NUM_THREADS": "1"}
        self.environment |= {"TORCHINDUCTOR_CACHE_DIR": str(self.cache), "PYTHONWARNINGS": "ignore"}
        self.environment.pop("TRITON_CACHE_DIR", None)
        (directory / "program.py").write_text(textwrap.dedent(PROGRAM))
        self.write(fixed=False)

    def write(self, *, fixed):
        mutates, body = ('("out",)', "out.copy_(x)") if fixed else ("()", "pass")
        text = textwrap.dedent(OPERATORS).format(mutates=mutates, body=body)
        (self.directory / "operators.py").write_text(text)

    @property
    def command(self):
        return [sys.executable, str(self.directory / "program.py")]

    def run(self, *words, **settings):
        command = [*self.command, *words]
        return self._run(command, settings)

    def audit(self, *words):
        return self._run([sys.executable, "-m", "safecache", "audit", "--recompile", *words, "--", *self.command], {})

    def _run(self, command, settings):
        environment = self.environment | settings
        return subprocess.run(command, env=environment, cwd=self.directory, capture_output=True, text=True)
