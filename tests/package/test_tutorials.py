"""The console commands of the README and of first_steps.md run in order, in one shell, and print what the page shows."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest
from conftest import SOURCE

from safecache.testing import isolated as isolated_environment

PAGES = [SOURCE / "README.md", SOURCE / "safecache" / "guide" / "first_steps.md"]
END = "end of command"
# A key, the id of a run, or a version.
VARYING = re.compile(r"\d\w{4}|\d\.\d+\.\d|[a-z]\d")

pytestmark = [
    pytest.mark.default_release,
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash"),
]


def read_steps(text):
    """The commands of the console blocks, each with the lines that the page shows below it."""
    steps = []
    for block in re.findall(r"^```console\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        for line in block.splitlines():
            if line.startswith("$ "):
                steps.append((line[2:], []))
            else:
                steps[-1][1].append(line)
    return steps


def stable(line):
    """Patterns of what a shown line has between its ellipses: of any number, of any word that varies, and of any space."""

    def pattern(word):
        return r"\S+" if VARYING.search(word) else re.sub(r"\d+", r"\\d+", re.escape(word))

    for fragment in filter(str.strip, line.split("…")):
        yield r"\s+".join(pattern(word) for word in fragment.split())


def assert_shown(lines, printed):
    """All fragments of the lines that are shown are in what was printed, in this order."""
    place = 0
    for pattern in (pattern for line in lines for pattern in stable(line)):
        found = re.compile(pattern).search(printed, place)
        assert found, (pattern, printed)
        place = found.end()


def write_program(text, steps, directory):
    """The script of the page, under the name that the page gives it: in a block of its own, or as ``cat`` prints it."""
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    names = re.findall(r"Save this script as `(\S+)`", text)
    programs = dict(zip(names, blocks, strict=True)) if names else {}
    programs |= {
        command[4:]: "".join(f"{line}\n" for line in shown) for command, shown in steps if command.startswith("cat ")
    }
    ((name, program),) = programs.items()
    (directory / name).write_text(program)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_print_what_the_page_shows(tmp_path, page):
    text = page.read_text(encoding="utf-8")
    steps = read_steps(text)
    assert len(steps) >= 4 and not any("demo" in command or "pip" in command for command, _ in steps)
    names = ("bin", "home", "work")
    binaries, home, work = (tmp_path / name for name in names)
    for name in names:
        (tmp_path / name).mkdir()
    for name, module in {"python": "", "safecache": " -m safecache"}.items():
        (binaries / name).write_text(f'#!/bin/sh\nexec "{sys.executable}"{module} "$@"\n')
        (binaries / name).chmod(0o755)
    write_program(text, steps, work)

    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SAFECACHE", "TRITON_"))}
    environment |= {name: value for name, value in isolated_environment(tmp_path).items() if "SAFECACHE" not in name}
    environment |= {"HOME": str(home), "PYTHONPATH": str(SOURCE), "PATH": f"{binaries}:{os.environ['PATH']}"}
    script = "".join(f'{command}\necho "{END} $?"\n' for command, _ in steps)
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=work,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
    )
    printed = re.split(rf"^{END} (\d+)\n", done.stdout, flags=re.MULTILINE)
    assert printed[1::2] == ["0"] * len(steps), done.stdout
    for (_, shown), output in zip(steps, printed[::2], strict=False):
        assert_shown(shown, output)
    assert (work / "cache").is_dir(), done.stdout
