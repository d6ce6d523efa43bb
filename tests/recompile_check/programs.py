"""A program with a custom operator in a module beside it, which can be changed without its cache key being."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

from conftest import SOURCE

from safecache.testing import isolated

# Registered before safecache is there, which then does not know what the composite one is made of.
OPERATORS = """
    import torch

    library = torch.library.Library("verified", "DEF")
    library.define("shifted(Tensor x) -> Tensor")
    library.impl("shifted", lambda x: x + {number}, "CompositeImplicitAutograd")
    """
PROGRAM = """
    import json, os, sys
    import torch
    import operators
    import safecache

    def shifted(x):
        return torch.ops.verified.shifted(x) * 3

    def trained(x):
        return torch.relu(x @ x.T).sum()

    with torch.no_grad():
        value = torch.compile(shifted)(torch.ones(3))[0].item()
        if "one" not in sys.argv:
            torch.compile(shifted, dynamic=True)(torch.ones(4, 5))
    if "one" not in sys.argv:
        torch.compile(trained)(torch.ones(3, 3, requires_grad=True)).backward()
    if "twice" in sys.argv:
        torch._dynamo.reset()
        with torch.no_grad():
            torch.compile(shifted)(torch.ones(3))
    print(json.dumps({**safecache.stats(), "value": value}))
    """


class Program:
    """``write``: the operator as it adds a number."""

    def __init__(self, directory):
        self.directory = directory
        self.cache = directory / "caches" / "inductor"
        self.environment = os.environ | isolated(str(directory / "caches"))
        self.environment |= {"PYTHONPATH": str(SOURCE), "TORCHINDUCTOR_COMPILE_THREADS": "1", "OMP_NUM_THREADS": "1"}
        self.environment |= {"TORCHINDUCTOR_CACHE_DIR": str(self.cache), "PYTHONWARNINGS": "ignore"}
        self.environment["SAFECACHE_ASSUME_UNCHANGED"] = "verified.shifted.default"
        self.environment.pop("TRITON_CACHE_DIR", None)
        (directory / "program.py").write_text(textwrap.dedent(PROGRAM))
        self.write(number=1)

    def write(self, *, number):
        (self.directory / "operators.py").write_text(textwrap.dedent(OPERATORS).format(number=number))

    @property
    def command(self):
        return [sys.executable, str(self.directory / "program.py")]

    def run(self, *words, **settings):
        command = [*self.command, *words]
        return self._run(command, settings)

    def run_file(self, name, *words, **settings):
        return self._run([sys.executable, name, *words], settings)

    def _run(self, command, settings):
        environment = self.environment | settings
        return subprocess.run(command, env=environment, cwd=self.directory, capture_output=True, text=True)
