"""Runs a C++ compiler, or copies what it has made of the same input before: most of the time of a test goes into that.

``python caching_compiler.py STORE COMPILER ARGUMENTS…``. Only what Inductor builds in one step from one source, a library,
an object or a precompiled header, outside of any include directory of a test's own, is kept; everything else, and
whatever goes wrong, is left to the compiler.
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
# By which a copy of torch is known whose Python alone is a copy, and all else a link.
_LINKED = ("ATen/ATen.h", "torch/torch.h", "libtorch.so")
_HEADER = ["-x", "c++-header"]
_QUOTED = re.compile(rb'^\s*#\s*include\s*["<](/[^">]+)[">]', re.MULTILINE)


def main(store: str, compiler: str, arguments: list[str]) -> int:
    try:
        output, key = _request(store, compiler, arguments)
    except (LookupError, ValueError, OSError):
        os.execv(compiler, [compiler, *arguments])
    kept = os.path.join(store, key)
    with suppress(OSError):
        _copy(kept, output, 0o777 if "-shared" in arguments else 0o666)
        if arguments[:2] == _HEADER:
            _note_header(store, key, output)
        return 0
    status = subprocess.run([compiler, *arguments]).returncode
    if status == 0:
        with suppress(OSError):
            draft = f"{kept}.{os.getpid()}"
            shutil.copy(output, draft)
            os.rename(draft, kept)
            if arguments[:2] == _HEADER:
                _note_header(store, key, output)
    return status


def _note_header(store: str, key: str, output: str) -> None:
    """Each copy of a precompiled header is as good as the first, whatever it will be called."""
    with open(os.path.join(store, _identity(output)), "w") as file:
        file.write(key)


def _identity(path: str) -> str:
    status = os.stat(path)
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ino}"


def _copy(kept: str, output: str, mode: int) -> None:
    """As the compiler would make it: with room for temporary files, as a new file, and with the modes of the umask."""
    with open(kept, "rb") as file, tempfile.TemporaryFile(dir=os.environ.get("TMPDIR")) as temporary:
        shutil.copyfileobj(file, temporary)
    with suppress(FileNotFoundError):
        os.unlink(output)
    shutil.copyfile(kept, output)
    mask = os.umask(0o077)
    os.chmod(output, mode & ~mask)


def _request(store: str, compiler: str, arguments: list[str]) -> tuple[str, str]:
    """The file that is to be made, and a digest of all that it is made of. Raises if it is not to be kept."""
    makes_header = arguments[:2] == _HEADER
    if not makes_header and "-shared" not in arguments and "-c" not in arguments:
        raise ValueError("neither a library nor an object")
    (source,) = arguments[2:3] if makes_header else (name for name in arguments if name.endswith((".cpp", ".cc")))
    output = arguments[arguments.index("-o") + 1]
    state = hashlib.sha256(compiler.encode())
    state.update(repr([os.environ.get(name) for name in ("CPATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH")]).encode())
    inputs = set()
    for before, name in zip(["", *arguments], arguments, strict=False):
        if before == "-include":
            inputs.add(name)
        elif name not in (source, output):
            state.update((_searched(name) if name.startswith(("-I", "-L")) else name).encode() + b"\0")
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
            identity = _identity(f"{name}.gch")
            # Else it was made in another way, and no other is like it.
            with suppress(FileNotFoundError), open(os.path.join(store, identity)) as file:
                identity = file.read()
            state.update(identity.encode())
    return output, state.hexdigest()


def _searched(option: str) -> str:
    """The option, with the directory that it names or all of whose content is a link to. Raises for one of a test."""
    kind, directory = option[:2], option[2:]
    place = os.path.realpath(directory)
    for held in _LINKED:
        path = os.path.join(directory, held)
        if os.path.islink(path):
            place = os.path.realpath(path).removesuffix(f"/{held}")
    if not place.startswith(_PREFIXES):
        raise ValueError("headers or libraries of a test")
    return kind + place


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
