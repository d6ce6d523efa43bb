"""Programs to be warmed up, each with caches and keys of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest
from conftest import SOURCE

from safecache.testing import isolated

# Each of these tests starts two to six programs that import torch.
EXHAUSTIVE = pytest.mark.skipif(
    not os.environ.get("SAFECACHE_TEST_EXHAUSTIVE"), reason="takes long: SAFECACHE_TEST_EXHAUSTIVE=1 runs it"
)
# A product has no kernel of ours, and so no library to build, which takes longer than all else.
COMPILED = """
    import torch

    def scaled(x):
        return torch.mm(x, x)

    with torch.no_grad():
        torch.compile(scaled)(torch.ones(3, 3))
    """
WITH_LIBRARY = """
    import torch

    def scaled(x):
        return torch.relu(x) * 3

    with torch.no_grad():
        torch.compile(scaled)(torch.ones(3))
    """
# A kernel for a GPU that need not be there, without torch: a tenth of the time.
KERNEL = """
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource


    @triton.jit
    def scaled(source, target, count, BY: tl.constexpr):
        index = tl.program_id(0) * 128 + tl.arange(0, 128)
        mask = index < count
        tl.store(target + index, tl.load(source + index, mask) * BY, mask)


    def compile_scaled(by):
        signature = {"source": "*fp32", "target": "*fp32", "count": "i32", "BY": "constexpr"}
        triton.compile(ASTSource(scaled, signature, constexprs={"BY": by}), target=GPUTarget("cuda", 90, 32))


    compile_scaled(2.0)
    """
RESTLESS_KERNEL = KERNEL.replace("compile_scaled(2.0)", "import random\n    compile_scaled(random.random())")
# Another graph in each process.
RESTLESS = """
    import random
    import torch

    number = random.random()

    def scaled(x):
        return torch.addmm(x, x, x, alpha=number)

    with torch.no_grad():
        torch.compile(scaled)(torch.ones(3, 3))
    """


def run_in_fork(path):
    """A scene of the zygote: a program, and what it has counted."""
    import runpy

    import safecache

    runpy.run_path(path, run_name="__main__")
    return safecache.stats()


class Home:
    """Caches and keys below a directory, and a program there."""

    def __init__(self, directory, program=COMPILED):
        self.directory = directory
        self.cache = directory / "caches" / "cache"
        self.environment = os.environ | isolated(str(directory / "caches"))
        for name in ("_SAFECACHE_RUN", "VLLM_CACHE_ROOT"):
            self.environment.pop(name, None)
        self.environment |= {"PYTHONPATH": str(SOURCE), "TORCHINDUCTOR_COMPILE_THREADS": "1", "OMP_NUM_THREADS": "1"}
        self.environment |= {"HOME": str(directory), "PYTHONWARNINGS": "ignore"}
        self.write(program)

    def write(self, program):
        (self.directory / "program.py").write_text(textwrap.dedent(program))

    @property
    def command(self):
        return [sys.executable, str(self.directory / "program.py")]

    def start(self, *words, **settings):
        environment = {**self.environment, **settings}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        command = [sys.executable, "-m", "safecache", *words]
        return subprocess.Popen(command, env=environment, cwd=self.directory, **pipes)

    def say(self, *words, **settings):
        process = self.start(*words, **settings)
        out, err = process.communicate(timeout=280)
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def python(self, *words, **settings):
        environment = {**self.environment, **settings}
        command = [sys.executable, *words]
        return subprocess.run(command, env=environment, cwd=self.directory, capture_output=True, text=True, timeout=280)

    def warm(self, *options, command=None, **settings):
        return self.say("warm", *options, "--", *(command or self.command), **settings)

    def report(self, *options, **how):
        said = self.warm("--json", *options, **how)
        return said.returncode, json.loads(said.stdout.splitlines()[-1])
