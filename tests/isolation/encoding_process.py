"""Compiles each case of a corpus in this process and in a worker, and says what differs."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import compiler
from triton.experimental.gluon._runtime import GluonASTSource
from triton.runtime import cache

from safecache.isolation import encoding

# All that a worker has of this process: the path of its modules, and what comes through its standard input.
WORKER = """
import json, os, sys
sys.path[:] = json.loads(sys.argv[1])
from safecache.isolation import job
for line in sys.stdin:
    request = json.loads(line)
    print(json.dumps(job.run(request["job"], request["directory"])), file=sys.__stdout__, flush=True)
"""


class Worker:
    def __init__(self):
        command = [sys.executable, "-S", "-c", WORKER, json.dumps(sys.path)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, job, directory):
        print(json.dumps({"job": job, "directory": directory}), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()


class Compiled:
    """A compile in this process, and what came before it that a worker is told."""

    def __init__(self, source, target, options):
        stock = compiler.get_cache_key

        def remember(source, backend, parsed, env_vars):
            self.key = stock(source, backend, parsed, env_vars=env_vars)
            self.source, self.options, self.backend = source, parsed, backend
            return self.key

        self.target = target
        compiler.get_cache_key = remember
        try:
            kernel = triton.compile(source, target=target, options=options)
        finally:
            compiler.get_cache_key = stock
        self.hash = kernel.hash
        self.files = {name: Path(path).read_bytes() for name, path in kernel.metadata_group.items()}

    def encode(self):
        return encoding.encode(self.source, self.target, vars(self.options))

    def job(self, encoded):
        target = [self.target.backend, self.target.arch, self.target.warp_size]
        keys = {"key": self.key, "triton_key": cache.triton_key(), "backend_key": self.backend.hash()}
        return {"source": encoded, "target": target, **keys}


def source_of(case):
    of = GluonASTSource if case.kernel.is_gluon() else compiler.ASTSource
    return of(case.kernel, case.signature, case.constants, case.attributes)


def target_of(case):
    return GPUTarget("cuda", case.arch, 32) if isinstance(case.arch, int) else GPUTarget("hip", case.arch, 64)


def compile_twice(worker, source, target, options):
    """In both processes; what differs."""
    here = Compiled(source, target, options)
    encoded = here.encode()
    with tempfile.TemporaryDirectory() as directory:
        reply = worker.run(here.job(encoded), directory)
        if "error" in reply:
            return {"way": encoded["kind"], "error": reply["error"]}
        folder = Path(directory, reply["folder"])
        there = {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith("__grp__")}
    different = differing(encoded["kind"], here.files, there, varying(target.arch, options))
    return {"way": encoded["kind"], "same key": reply["key"] == here.hash, "differing": different}


def varying(arch, options):
    """The suffixes of what is not the same each time that this process compiles one kernel."""
    if arch == 100:
        # The ptxas of Triton 3.6 allocates registers in one way or another.
        return (".cubin",)
    if options.get("num_ctas", 1) > 1:
        # Layouts are converted in the order of addresses.
        return (".ttgir",)
    if "instrumentation_mode" in options:
        # Triton 3.7 names functions after addresses.
        return (".llir", ".ptx", ".cubin")
    return ()


def plain(way, name, content):
    """What to compare of a file, which is its bytes, but for one thing."""
    if way != "lowered" or not name.endswith((".ttir", ".ttgir")) or content is None:
        return content
    # MLIR's text does not tell what the arguments of a loop are called, and has to make up names.
    numbers = {}
    return re.sub(rb"%\w+", lambda found: b"%%%d" % numbers.setdefault(found[0], len(numbers)), content)


def differing(way, here, there, but):
    """The suffixes of the files that are not in both, or not the same."""
    names = [name for name in here.keys() | there.keys() if not (name in here and name in there and name.endswith(but))]
    same = [name for name in names if plain(way, name, here.get(name)) == plain(way, name, there.get(name))]
    return sorted(Path(name).suffix for name in set(names) - set(same))


def compile_ir(worker, case):
    """By stage: what comes of the kernel's own IR, when a file with it is compiled."""
    target = target_of(case)
    made = Compiled(source_of(case), target, dict(case.options)).files
    results = {}
    with tempfile.TemporaryDirectory() as directory:
        for stage in (".ttir", ".ttgir"):
            path = Path(directory, f"given{stage}")
            path.write_bytes(next(content for name, content in made.items() if name.endswith(stage)))
            results[stage] = compile_twice(worker, str(path), target, {}) | {"expected": "ir"}
    return results


def main(modules):
    worker = Worker()
    results = {}
    for module in modules:
        for case in importlib.import_module(f"isolation.corpus.{module}").CASES:
            target = target_of(case)
            results[case.name] = {"expected": case.way}
            try:
                results[case.name] |= compile_twice(worker, source_of(case), target, dict(case.options))
                if case.name == "softmax":
                    results |= {f"{stage} of {case.name}": r for stage, r in compile_ir(worker, case).items()}
            except Exception as error:
                results[case.name]["raised"] = f"{type(error).__name__}: {error}"
    worker.close()
    print(json.dumps(results))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        os.environ["TRITON_CACHE_DIR"] = place
        main(sys.argv[1:])
