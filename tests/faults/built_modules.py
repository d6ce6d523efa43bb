"""Libraries that a package builds with ninja when they are used: the program, its sources, and what is built."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from conftest import SOURCE

from safecache.testing import isolated

# What ends the process that loads it.
TROJAN = "#include <cstdlib>\n__attribute__((constructor)) static void run() { std::_Exit(66); }\n"
LONG_AGO = 1_600_000_000


class BuiltModule:
    """``cache``: what is built lies below it, in the one directory that ``pattern`` finds.

    ``program`` prints what the library answers, how often it ran ninja, and safecache's counters.
    """

    program = ""

    def __init__(self, base, cache, pattern):
        self.base, self.cache, self.pattern = base, cache, pattern
        (base / "include").mkdir()
        self.write_header(41)
        (base / "program.py").write_text(self.program)
        paths = {
            "PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]]),
            "PYTHONPATH": os.pathsep.join([str(SOURCE), *sys.path[1:]]),
        }
        self.environment = os.environ | isolated(base) | paths

    def write_header(self, answer):
        path = self.base / "include" / "answer.h"
        path.write_text(f"#define ANSWER {answer}\n")
        os.utime(path, (LONG_AGO, LONG_AGO))

    def start(self, *words, within=(), **settings):
        return subprocess.Popen(
            [*within, sys.executable, "program.py", *words],
            env=self.environment | settings,
            cwd=self.base,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *words, within=(), **settings):
        """The answer, how often ninja ran, safecache's counters, and stderr."""
        process = self.start(*words, within=within, **settings)
        try:
            output, errors = process.communicate(timeout=250)
        finally:
            process.kill()
        assert process.returncode == 0, errors[-3000:]
        return *json.loads(output.splitlines()[-1]), errors

    @property
    def built(self):
        (directory,) = self.cache.glob(self.pattern)
        return directory

    @property
    def kept(self):
        """The library that Inductor's cache has for other directories."""
        (path,) = (self.base / "cache").glob("??/c*.so")
        return path

    def compile_trojan(self, path):
        """Put code that ends the process at this path, as new as a file can be."""
        source = self.base / "trojan.cpp"
        source.write_text(TROJAN)
        kind = ["-shared"] if path.suffix == ".so" else ["-c"]
        subprocess.run(["c++", "-fPIC", *kind, str(source), "-o", str(path)], check=True)

    def listed(self):
        """Each file of the cache with what identifies and changes it."""
        files = (path for path in self.cache.rglob("*") if path.is_file())
        return {str(path): (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}
