"""Processes that compile the configurations of one kernel together."""

from __future__ import annotations

import os
import time
from pathlib import Path
from unittest import mock

from scenes import autotuners

CONFIGS = tuple({"XBLOCK": 32 << number} for number in range(6))


def tune(together=True, fails=()):
    """The results in torch's order, which of them were compiled here, and the error; each leaves a mark in MARKS.

    ``together``: whoever compiles the first configuration ends that after all others are compiled, or 20 s.
    ``fails``: what ptxas refuses.
    """
    from triton.compiler import ASTSource
    from triton.runtime.errors import PTXASError

    marks, here, parse = Path(os.environ["MARKS"]), [], ASTSource.make_ir
    end = time.monotonic() + 20

    def make_ir(source, *rest, **named):
        (block,) = source.constants.values()
        while together and block == CONFIGS[0]["XBLOCK"] and time.monotonic() < end:
            if len(list(marks.iterdir())) >= len(CONFIGS) - 1:
                break
            time.sleep(0.01)
        here.append(block)
        (marks / f"{block} {os.getpid()}").touch()
        if block in fails:
            raise PTXASError(f"{block} is refused")
        return parse(source, *rest, **named)

    told = {"here": here, "error": "", "blocks": []}
    with autotuners.driver(), mock.patch.object(ASTSource, "make_ir", make_ir):
        tuner = autotuners.autotuner(configs=CONFIGS)
        try:
            tuner._precompile_worker()
        except Exception as error:
            told["error"] = f"{type(error).__name__}: {error}"
        told["blocks"] = [result.config.kwargs["XBLOCK"] for result in tuner.compile_results]
    return told


def precompile_choices():
    """In what order torch has choices for a template compiled, of which each is a kernel; and in what order it should."""
    from torch._inductor import config, ir, select_algorithm

    from safecache.single_flight import tuning

    compiled = []

    class Choice(ir.ChoiceCaller):
        def __init__(self, block):
            super().__init__("a template", [], None, "")
            self.block = block

        def kernel_hash_key(self):
            return f"XBLOCK {self.block}"

        hash_key = kernel_hash_key

        def precompile(self):
            compiled.append(self.block)
            autotuners.autotuner(configs=[{"XBLOCK": self.block}])._precompile_worker()

    blocks = [config["XBLOCK"] for config in CONFIGS]
    choices = [Choice(block) for block in blocks]
    with autotuners.driver(), config.patch(compile_threads=1):
        times = select_algorithm.AlgorithmSelectorCache().make_precompile_fn(choices, "a template", "its inputs")()
    own = [choice.block for choice in tuning.order_for_process(choices, Choice.kernel_hash_key)]
    return {"compiled": compiled, "own": own, "timed": len(times)}
