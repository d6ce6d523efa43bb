"""Files that Inductor generates: sources to be executed, and the kernels that generated C++ loads by their paths."""

from __future__ import annotations

import errno
import locale
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from safecache import compiles
from safecache.built_code import sources
from safecache.fs import ownership, private_directory
from safecache.places.layout import CodeFile
from safecache.reporting.kinds import Kind
from safecache.session import Part, inherit
from safecache.settings import config
from safecache.signing import keyring
from safecache.store import directories, entry_files, gate

__all__ = [
    "ENDINGS",
    "admit_kernels",
    "admit_source",
    "find_header_directory",
    "find_headers_folder",
    "find_root",
    "initialise",
    "place_kernel",
    "put",
    "put_again",
    "write_file",
]

ENDINGS = (".cubin", ".hsaco", ".spv")
# As torch writes a path into C++: in double quotes, with those and backslashes escaped by backslashes.
_NAMED = re.compile(r'"(/(?:[^"\\\n]|\\.)*\.(?:cubin|hsaco|spv))"')


def admit_kernels(*codes: str) -> None:
    """Require that each kernel whose path is in these texts exists and is attested; quarantine unattested ones.

    ``codes``: C++ sources that Inductor generated. Raises FileNotFoundError if a kernel is missing then, or others
    could replace it before it is loaded: torch treats the graph as a miss. Raises EntryRefusedError in strict mode.
    """
    for path in dict.fromkeys(named for code in codes for named in _NAMED.findall(code)):
        _admit_kernel(re.sub(r"\\(.)", r"\1", path))


def _admit_kernel(path: str) -> None:
    root = config.cache_directory() or ""
    if not root or not path.startswith(os.path.join(root, "")):
        root = os.path.dirname(path)  # of a cache that was moved since, with no record here
    if not gate.quarantine_unattested(CodeFile(path, root)):
        raise FileNotFoundError(errno.ENOENT, "a kernel of this graph is not there, or nothing attested it", path)
    objection = ownership.find_exposure(path)
    if objection is not None:
        raise FileNotFoundError(errno.ENOENT, f"a kernel would be loaded by its path, and {objection}", path)


def place_kernel(path: str, root: str, content: bytes) -> str:
    """Attest a kernel that this process has written to ``path``; returns the path to load it from.

    That is a private copy if others could replace the file: other processes that find the graph have to compile it
    then. Raises OSError if there is no place for the copy.
    """
    if ownership.find_exposure(path) is not None:
        return gate.make_private_path(CodeFile(path, root), content, is_kept=False)
    gate.attest_file(CodeFile(path, root), content=content)
    return path


# The Python sources generated last, by path: one may be removed or replaced before torch reads it.
_MOST_REMEMBERED = 16
_generated: Part[dict[str, bytes]] = Part(dict, inherit)


def put(write: Callable[[], tuple[str, str]], content: str | bytes) -> tuple[str, str]:
    """Call ``write``, torch's writer of a generated file; return its name and path once the file holds ``content``.

    For a kernel that C++ loads, the path may be that of a private copy. Raises what ``write`` does, OSError, and in
    strict mode EntryRefusedError for a wrong file.
    """
    compiles.current.written = ""
    name, path = write()
    _settle_file(path, content, write)
    if path.endswith(".py"):
        _remember_source(path, content)
    elif path.endswith(ENDINGS):
        path = place_kernel(path, find_root(path), _encode_content(content))
    return name, path


def put_again(write: Callable[[], str], content: str) -> str:
    """Call ``write`` for a verified entry's source; return its path once it holds ``content``. Raises as put() does."""
    compiles.current.written = ""
    path = write()
    _settle_file(path, content, write)
    _remember_source(path, content)
    return path


def _settle_file(path: str, content: str | bytes, again: Callable[[], Any]) -> None:
    source = _encode_content(content)
    if not sources.quarantine_if_changed(path, source, find_root(path)):
        again()
        sources.attest(path, source)
    if compiles.current.written == path:  # just written: copy it to the shared tier
        directories.propagate_file(CodeFile(path, kind=Kind.SOURCE), anew=False)


def write_file(path: str, content: str | bytes, *, encode_utf_8: bool, make_directories: bool) -> None:
    """Write ``content`` to ``path`` by renaming a temporary file. Raises OSError.

    Like torch's write_atomic, but the names of temporary files cannot collide between two containers.
    """
    encoded = content.encode("utf-8") if encode_utf_8 and isinstance(content, str) else _encode_content(content)
    compiles.current.written = path
    entry_files.write(path, encoded, make_directories=make_directories)


def find_header_directory(directory: str) -> str:
    """Return the directory for precompiled headers: one per signing key below torch's. Any other is returned unchanged.

    Otherwise processes with different signing keys, or stock torch, would recompile each other's, of some 150 MB.
    """
    key = keyring.current().signing
    if key is None or directory != find_headers_folder():
        return directory
    return os.path.join(directory, f"safecache-{key.id.hex()}")


def find_headers_folder() -> str | None:
    """Return where torch keeps precompiled headers; None if this torch has no such directory."""
    found: str | None = getattr(_get_codecache(), "_HEADER_DIR", None)
    return found


def initialise(graph: Any, compiled: Any, work: Callable[[], None]) -> None:
    """Call ``work``, which reads the source of ``graph`` from its file, and give ``compiled`` the source as generated.

    A file that was changed or removed meanwhile therefore does no harm. Raises what ``work`` raises.
    """
    path = graph.cache_path
    generated = _generated.now.get(path)
    try:
        work()
    except OSError:
        if generated is None:
            raise
        graph.cache_path = private_directory.make_copy(os.path.basename(path), generated)
        try:
            work()
        finally:
            graph.cache_path = path
    if generated is not None:
        compiled.source_code = generated.decode(locale.getpreferredencoding(False))


def admit_source(path: str, key: str) -> str:
    """Return the path to execute the source with this cache key from: ``path``, or a copy that nobody else can replace.

    Raises EntryRefusedError, in every mode, if nothing attests it; OSError if it is unreadable and not in memory.
    """
    generated = _generated.now.get(path)
    try:
        return sources.admit(path, key, _get_codecache().code_hash)
    except OSError:
        if generated is not None:
            with suppress(OSError):  # such as too many open files: then raise what stock torch would
                return private_directory.make_copy(os.path.basename(path), generated)
        raise


def _remember_source(path: str, content: str | bytes) -> None:
    generated = _generated.now
    generated[path] = _encode_content(content)
    for forgotten in list(generated)[:-_MOST_REMEMBERED]:
        generated.pop(forgotten, None)


def _encode_content(content: str | bytes) -> bytes:
    # In the locale's encoding, as in torch's write_atomic.
    return content.encode(locale.getpreferredencoding(False)) if isinstance(content, str) else content


def _get_codecache() -> Any:
    return sys.modules["torch._inductor.codecache"]


def find_root(path: str) -> str:
    """Return the root that holds the record of ``path``: the cache, or else its own directory, as for headers."""
    cache: str = _get_codecache().cache_dir()
    return cache if path.startswith(os.path.join(cache, "")) else os.path.dirname(path)
