"""Kernels that generated C++ loads by their paths, when it runs: those that its text names are verified before that.

A kernel has a record, as a library has. Where one is refused or gone the graph counts as gone, and is compiled anew.
"""

from __future__ import annotations

import errno
import os
import re

from safecache.code import gate
from safecache.files import ownership
from safecache.reporting.kinds import Kind
from safecache.settings import config

__all__ = ["ENDINGS", "admit", "place"]

ENDINGS = (".cubin", ".hsaco", ".spv")
# As torch writes a path into C++: in double quotes, with backslashes before those and before backslashes.
_NAMED = re.compile(r'"(/(?:[^"\\\n]|\\.)*\.(?:cubin|hsaco|spv))"')


def admit(*codes: str) -> None:
    """See to it that each kernel that these texts name is there, and attested; what is not was moved away.

    Raises FileNotFoundError if one is missing then, or could be exchanged before it is loaded: torch takes that for a
    graph that is not in the cache. Raises EntryRefusedError in strict mode.
    """
    for path in dict.fromkeys(named for code in codes for named in _NAMED.findall(code)):
        _admit(re.sub(r"\\(.)", r"\1", path))


def _admit(path: str) -> None:
    root = config.cache_directory() or ""
    if not root or not path.startswith(os.path.join(root, "")):
        root = os.path.dirname(path)  # of a cache that was moved since: no record of it is here
    if not gate.admit_build(path, root):
        raise FileNotFoundError(errno.ENOENT, "a kernel of this graph is not there, or nothing attested it", path)
    objection = ownership.why_not_private(path)
    if objection is not None:
        raise FileNotFoundError(errno.ENOENT, f"a kernel would be loaded by its path, and {objection}", path)


def place(path: str, root: str, content: bytes) -> str:
    """Attest a kernel that this process has written to ``path``; where it is to be loaded from.

    That is a copy for this process where others could exchange it, and who finds the graph there has to compile it.
    """
    if ownership.why_not_private(path) is not None:
        return gate.private_copy(os.path.basename(path), content, Kind.NATIVE_CODE)
    gate.keep(path, root, content=content)
    return path
