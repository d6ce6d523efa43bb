"""A machine's paths and user, a program that compiles there, and what it asked the C++ compiler for."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from faults.users import as_user

from safecache.testing import isolated

PROGRAM = Path(__file__).parent / "program"
SOURCE = Path(__file__).parents[2]
_COMPILED = (".cpp", ".h", ".hpp")


class Place:
    """All below ``base``: the cache, home, temporary files, the project, and a compiler that writes down its calls."""

    def __init__(self, base: Path, user: int = 0) -> None:
        self.base, self.user = base, user
        self.cache, self.project = base / "cache", base / "project"
        for name in ("cache", "home", "tmp"):
            (base / name).mkdir(parents=True)
        base.chmod(0o755)
        shutil.copytree(PROGRAM, self.project)
        (base / "key").write_bytes(b"k" * 64)
        (base / "key").chmod(0o600)
        self.calls = base / "calls"
        self.calls.touch()
        self.compiler = base / "bin" / "g++"
        self.compiler.parent.mkdir()
        self.compiler.write_text(f'#!/bin/sh\necho "$@" >> {self.calls}\nexec {shutil.which("g++")} "$@"\n')
        self.compiler.chmod(0o755)
        self.compiler.with_name("c++").symlink_to("g++")  # as extensions are built

    def own(self) -> None:
        """Give all of it to its user."""
        for folder, _, files in os.walk(self.base):
            for path in (folder, *(os.path.join(folder, name) for name in files)):
                os.lchown(path, self.user, self.user)

    def run(self, *scenes: str, **variables: str) -> dict[str, dict]:
        """What came of each scene, in a process of this place."""
        name = f"user{self.user}"
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("TORCH", "TRITON"))}
        environment |= isolated(self.base) | {
            "HOME": str(self.base / "home"),
            "TMPDIR": str(self.base / "tmp"),
            "USER": name,
            "LOGNAME": name,
            "TRITON_CACHE_DIR": str(self.cache / "triton" / "0"),
            "SAFECACHE_KEY_FILE": str(self.base / "key"),
            "PYTHONPATH": str(SOURCE),
            "PATH": os.pathsep.join([str(self.compiler.parent), os.environ["PATH"]]),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        command = [sys.executable, str(self.project / "main.py"), *scenes]
        if self.user:
            command = [*as_user(self.user), *command]
        self.calls.write_text("")
        ran = subprocess.run(
            command, env=environment | variables, cwd=self.project, capture_output=True, text=True, timeout=400
        )
        found = [json.loads(line) for line in ran.stdout.splitlines()]
        assert [outcome["scene"] for outcome in found] == list(scenes), ran.stderr[-3000:]
        return {outcome["scene"]: outcome for outcome in found}

    @property
    def compiled(self) -> list[str]:
        """The calls of the C++ compiler that name a source or a header; the others ask it for its version."""
        calls = self.calls.read_text().splitlines()
        return [call for call in calls if any(word.endswith(_COMPILED) for word in call.split())]
