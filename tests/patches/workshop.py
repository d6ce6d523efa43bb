"""A torch of a few lines and patches of it, for the command that applies them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from conftest import SOURCE

RELEASE = "2.13.0"
A, B = "torch/a.py", "torch/nested/b.py"
# Lines that are alike, which a diff without context must still tell apart by their numbers.
LINES = [f"line_{number % 5} = {number // 10}" for number in range(40)]
_MAIN = """
import sys
from safecache.source_patches import sites
sites.folder = lambda: sys.argv[1]
from safecache.cli.main import main
sys.exit(main(sys.argv[2:]))
"""


class Workshop:
    """Patches, and a directory of packages to apply them to."""

    def __init__(self, base: Path) -> None:
        self.patches, self.site, self._scratch = base / "patches", base / "site", base / "scratch"
        for path in (A, B):
            self.write(self.site, path, LINES)
        self.write(self.site, "torch/version.py", [f"__version__ = '{RELEASE}+cpu'"])

    def write(self, root: Path, path: str, lines: list[str]) -> None:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("".join(f"{line}\n" for line in lines))

    def patch(self, name: str, changed: dict[str, list[str]], releases: str = RELEASE, suffix: str = "") -> None:
        """Add a patch that makes of LINES, in each of these files, the lines that are given."""
        diffs = []
        for path, lines in changed.items():
            self.write(self._scratch / "a", path, LINES)
            self.write(self._scratch / "b", path, lines)
            command = ["git", "diff", "--no-index", "--no-prefix", "-U0", "--full-index", f"a/{path}", f"b/{path}"]
            diffs.append(subprocess.run(command, cwd=self._scratch, text=True, capture_output=True).stdout)
        text = f"{name}: keeps its promise\n\nFor a reason.\n\nRelease: torch {releases}\n---\n{''.join(diffs)}"
        folder = self.patches / "torch-2.13"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}{suffix}.patch").write_text(text)

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-c", _MAIN, str(self.patches), "patches", *arguments, "--target", str(self.site)]

    def run(self, *arguments: str, env: dict[str, str] | None = None, before: tuple[str, ...] = ()):
        environment = os.environ | {"PYTHONPATH": str(SOURCE), "SAFECACHE": "0"} | (env or {})
        return subprocess.run(
            [*before, *self.command(*arguments)], env=environment, text=True, capture_output=True, timeout=60
        )

    def done(self, *arguments: str) -> None:
        """Run the command, which must do it."""
        done = self.run(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr

    def states(self) -> dict[str, str]:
        done = self.run("list", "--json")
        assert done.returncode == 0, done.stderr
        return {patch["patch"]: patch["state"] for patch in json.loads(done.stdout)["patches"]}

    def files(self) -> dict[str, bytes]:
        """All that lies in the directory, but for what Python has compiled."""
        found = sorted(path for path in self.site.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        return {str(path.relative_to(self.site)): path.read_bytes() for path in found}


def inserted(lines: list[str], at: int, *new: str) -> list[str]:
    return [*lines[:at], *new, *lines[at:]]


def replaced(lines: list[str], at: int, count: int, *new: str) -> list[str]:
    return [*lines[:at], *new, *lines[at + count :]]
