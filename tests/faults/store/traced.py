"""What the store does, in processes of their own under strace: what each calls, and what is left when a call goes wrong."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import SOURCE

needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")

OLD, NEW = b"old" * 5000, b"new" * 7000
_START, _END = "/where-it-starts", "/where-it-ends"
_CODE = """
import os, sys
from safecache.places import layout
from safecache.store import entry_files
from safecache.reporting.kinds import Reason
{imports}
root = sys.argv[1]
entry = os.path.join(root, "fxgraph", "key", "entry")
os.path.exists({start!r})
try:
    {action}
except OSError as error:
    print(error.errno)
os.path.exists({end!r})
"""
ACTIONS = {
    "put": f"entry_files.publish(entry, {NEW!r}, root)",
    "write": f"entry_files.write(entry, {NEW!r}, make_directories=True)",
    "get": "[entry_files.read_unverified_entry(os.path.dirname(entry) + '/' + name) for name in layout.list_entries(os.path.dirname(entry))]",
    "quarantine": f"print(entry_files.quarantine(entry, root, Reason.DAMAGED, {OLD!r}))",
    "compile": "flyer.compile_once(root)",
}
_IMPORTS = {"compile": "from single_flight import flyer"}
# Of memory, which changes nothing that outlives the process.
_NOT_OF_FILES = {"mmap", "munmap", "mprotect", "brk", "+++"}
# After which all on the disk is as it was before, as after an open without these flags.
_LOOKING = {"close", "fcntl", "flock", "fstat", "getdents64", "ioctl", "lseek", "newfstatat", "read", "readlink"}
_CHANGING = ("O_CREAT", "O_TRUNC", "O_TMPFILE")


class Call(NamedTuple):
    """A system call that an action makes, which of its name in the whole process, and whether it may change the disk."""

    name: str
    number: int
    changes: bool


def run(action: str, root: Path, *options: str, waits: str = "always") -> subprocess.CompletedProcess[str]:
    """Do it under strace, with these options."""
    code = _CODE.format(start=_START, end=_END, action=ACTIONS[action], imports=_IMPORTS.get(action, ""))
    command = ["strace", "-f", "-qq", "-o", str(root.parent / "trace"), *options, sys.executable, "-S", "-c", code]
    paths = os.pathsep.join(map(str, [SOURCE, *sys.path[1:], SOURCE / "tests"]))
    # The same calls each time.
    environment = {"PYTHONPATH": paths, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "HOME": str(root.parent)}
    environment |= {"SAFECACHE_FSYNC": waits, "PATH": os.environ["PATH"]}
    return subprocess.run([*command, str(root)], env=environment, capture_output=True, text=True)


def calls(action: str, root: Path) -> list[Call]:
    """Those that its main thread makes of files and descriptors, in order: strace numbers them thread by thread."""
    done = run(action, root, "-e", "trace=%file,%desc")
    assert done.returncode == 0, done.stderr
    counts: Counter[str] = Counter()
    found, within = [], False
    lines = [line.split(None, 1) for line in (root.parent / "trace").read_text().splitlines()]
    for line in (line for thread, line in lines if thread == lines[0][0]):
        name = line.split("(")[0]
        counts[name] += 1
        within = within and _END not in line
        if within and name not in _NOT_OF_FILES:
            looks = name in _LOOKING or (name.startswith("open") and not any(flag in line for flag in _CHANGING))
            found.append(Call(name, counts[name], not looks))
        within = within or _START in line
    assert found and not within
    return found


def prepare(root: Path, there: bytes | None) -> Path:
    """A cache in which that lies, or nothing; where an action finds it."""
    shutil.rmtree(root, ignore_errors=True)
    entry = root / "fxgraph" / "key" / "entry"
    root.mkdir()
    if there is not None:
        entry.parent.mkdir(parents=True)
        entry.write_bytes(there)
    return entry
