"""Runs a C++ compiler, or copies what it has made of the same input before: most of the time of a test goes into that.

``python caching_compiler.py STORE COMPILER ARGUMENTS…``. Only what Inductor builds in one step from one source, outside
of any include directory of a test's own, is kept; everything else, and whatever goes wrong, is left to the compiler.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress

# Of this environment, of the Python that it was made with, and of the system.
_PREFIXES = (os.path.dirname(os.path.dirname(sys.executable)), sys.base_prefix, "/usr")
_QUOTED = re.compile(rb'^\s*#\s*include\s*["<](/[^">]+)[">]', re.MULTILINE)


def main(store: str, compiler: str, arguments: list[str]) -> int:
    try:
        output, key = _request(compiler, arguments)
    except (LookupError, ValueError, OSError):
        os.execv(compiler, [compiler, *arguments])
    kept = os.path.join(store, key)
    with suppress(OSError):
        _copy(kept, output)
        return 0
    status = subprocess.run([compiler, *arguments]).returncode
    if status == 0:
        with suppress(OSError):
            draft = f"{kept}.{os.getpid()}"
            shutil.copy(output, draft)
            os.rename(draft, kept)
    return status


def _copy(kept: str, output: str) -> None:
    """As the compiler would make it: with room for temporary files, as a new file, and with the modes of the umask."""
    with open(kept, "rb") as file, tempfile.TemporaryFile(dir=os.environ.get("TMPDIR")) as temporary:
        shutil.copyfileobj(file, temporary)
    with suppress(FileNotFoundError):
        os.unlink(output)
    shutil.copyfile(kept, output)
    mask = os.umask(0o077)
    os.chmod(output, 0o777 & ~mask)


def _request(compiler: str, arguments: list[str]) -> tuple[str, str]:
    """The file that is to be made, and a digest of all that it is made of. Raises if it is not to be kept."""
    if "-shared" not in arguments:
        raise ValueError("no library")
    (source,) = (name for name in arguments if name.endswith((".cpp", ".cc")))
    output = arguments[arguments.index("-o") + 1]
    state = hashlib.sha256(compiler.encode())
    state.update(repr([os.environ.get(name) for name in ("CPATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH")]).encode())
    inputs = set()
    for before, name in zip(["", *arguments], arguments, strict=False):
        if before == "-include":
            inputs.add(name)
        elif name not in (source, output):
            if name.startswith(("-I", "-L")) and not os.path.realpath(name[2:]).startswith(_PREFIXES):
                raise ValueError("headers or libraries of a test")
            state.update(name.encode() + b"\0")
            if name.endswith((".a", ".o", ".so")):
                inputs.add(name)
    with open(source, "rb") as file:
        content = file.read()
    state.update(content)
    inputs.update(name.decode() for name in _QUOTED.findall(content))
    for name in sorted(inputs):
        with open(name, "rb") as file:
            state.update(file.read())
        # In its place the compiler takes what was made of it, if there is such a file.
        with suppress(FileNotFoundError):
            status = os.stat(f"{name}.gch")
            state.update(f"{status.st_size} {status.st_mtime_ns} {status.st_ino}".encode())
    return output, state.hexdigest()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
