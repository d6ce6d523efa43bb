"""Whether each process compiles torch's sources anew, which takes seconds: nothing keeps the bytecode."""

from __future__ import annotations

import os
import shlex
import struct
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.machinery import PathFinder
from importlib.util import cache_from_source

from safecache.doctor import finding
from safecache.doctor.finding import Finding
from safecache.patching import targets

__all__ = ["check"]

_HEADER = struct.Struct("<4sIII")  # of PEP 552
_UNCHECKED = 0b01


def check(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Modules that each process imports and whose bytecode is neither kept nor can be."""
    spec = PathFinder.find_spec("torch")
    if spec is None or spec.origin is None:
        return
    folder = os.path.dirname(spec.origin)
    sources = [spec.origin, *_modules(os.path.dirname(folder))]
    missing = [path for path in sources if not _is_kept(path)]
    why = _why_not_kept(environ, os.path.dirname(cache_from_source(spec.origin)))
    if missing and why:
        evidence = (
            f"{len(missing)} of {len(sources)} modules of torch that are imported to compile have no bytecode, and "
            f"{why}: each process compiles torch's sources anew, for seconds."
        )
        remedy = f"env -u PYTHONDONTWRITEBYTECODE {shlex.join([sys.executable, '-m', 'compileall', '-q', folder])}"
        yield finding.warning("no-bytecode", evidence, remedy)


def _modules(packages: str) -> list[str]:
    """Sources below ``packages`` that whoever compiles imports: those that we patch."""
    names = sorted(name for name in targets.MODULES if name.startswith("torch."))
    found = [os.path.join(packages, *name.split(".")) + ".py" for name in names]
    return [path for path in found if os.path.isfile(path)]


def _why_not_kept(environ: Mapping[str, str], directory: str) -> str | None:
    if environ.get("PYTHONDONTWRITEBYTECODE"):
        return "PYTHONDONTWRITEBYTECODE is set"
    while not os.path.exists(directory):
        directory = os.path.dirname(directory)
    return None if os.access(directory, os.W_OK, effective_ids=True) else f"{directory} cannot be written"


def _is_kept(source: str) -> bool:
    """Whether an import takes the bytecode of that file, by what its header says of the source."""
    with suppress(OSError, struct.error), open(cache_from_source(source), "rb") as file:
        _, flags, modified, size = _HEADER.unpack(file.read(_HEADER.size))
        status = os.stat(source)
        return bool(flags & _UNCHECKED) or (modified, size) == (int(status.st_mtime) & 0xFFFFFFFF, status.st_size)
    return False
