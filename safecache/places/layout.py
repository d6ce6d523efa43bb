"""Layout of torch's and Triton's caches: places and names of entries and compiled code, and Triton's leftovers.

The cache directories are those that an environment leads to, without importing either. Source: ``cache_dir`` and
``default_cache_dir`` in torch/_inductor/runtime/cache_dir_utils.py, ``_HEADER_DIR`` in torch/_inductor/codecache.py,
``cache_knobs`` in triton/knobs.py. The same in torch 2.11 to 2.15.
"""

from __future__ import annotations

import base64
import getpass
import hashlib
import os
import re
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from safecache.fs import filesystem, folders, temporaries
from safecache.reporting.kinds import Kind
from safecache.session import Part, inherit
from safecache.settings import config

__all__ = [
    "AOT_FOLDER",
    "CODE_FOLDER",
    "DYNAMO_FOLDER",
    "FX_FOLDER",
    "HEADERS_FOLDER",
    "LOADED",
    "PACKAGE_FILE",
    "TRITON_FOLDER",
    "TRITON_KEY",
    "VLLM_ARTIFACT",
    "VLLM_CACHES",
    "VLLM_FOLDER",
    "VLLM_TABLE",
    "CodeFile",
    "Location",
    "find_cache_root",
    "find_triton_caches",
    "find_triton_siblings",
    "find_vllm_caches",
    "find_whole_cache",
    "inductor_cache_dir",
    "is_temporary",
    "list_entries",
    "locate",
    "name_entry",
    "precompiled_header_dir",
    "reap_once",
    "sglang_cache_dir",
    "triton_cache_dir",
    "vllm_cache_dir",
    "walk",
    "walk_code",
]

HEADERS_FOLDER = "precompiled_headers"
# The suffix of torch's marker beside a probe of vector instructions that could be loaded.
LOADED = ".load_ok"


def inductor_cache_dir(environ: Mapping[str, str]) -> str:
    """Return Inductor's cache directory, even if missing. Raises FileNotFoundError without a temporary directory."""
    return os.path.abspath(environ.get("TORCHINDUCTOR_CACHE_DIR") or _find_default_dir())


def precompiled_header_dir(_: Mapping[str, str]) -> str:
    """Return the directory of Inductor's precompiled headers, even if missing. Raises as inductor_cache_dir()."""
    return os.path.join(_find_default_dir(), HEADERS_FOLDER)


def triton_cache_dir(environ: Mapping[str, str]) -> str:
    """Return Triton's own cache directory, even if missing."""
    return environ.get("TRITON_CACHE_DIR") or _find_home_cache(environ)


def _find_home_cache(environ: Mapping[str, str]) -> str:
    home = environ.get("TRITON_HOME") or os.path.expanduser("~")
    return os.path.join(home, ".triton", "cache")


def find_whole_cache(root: str, environ: Mapping[str, str]) -> str:
    """Return the cache that contains ``root``: Inductor's or that of precompiled headers, or else ``root`` itself."""
    # Torch sets it when it first asks for the directory.
    cache = environ.get("TORCHINDUCTOR_CACHE_DIR")
    if cache and root.startswith(os.path.join(cache, "")):
        return cache
    above = os.path.dirname(root)
    return above if os.path.basename(above) == HEADERS_FOLDER else root


def _find_default_dir() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, ModuleNotFoundError, OSError):
        user = f"uid_{os.getuid()}"
    return os.path.join(tempfile.gettempdir(), "torchinductor_" + re.sub(r'[\\/:*?"<>|]', "_", user))


_NAME = re.compile(r"tmp\.pid_(\d+)_[0-9a-f-]{36}")
# Seconds. They are not locked, and whether the process lives can be told on its own host alone.
_PATIENCE = 86400.0

_reaped: Part[set[str]] = Part(set, inherit)


def is_temporary(name: str) -> bool:
    """Tell whether ``name``, in Triton's cache, is that of a file or directory that a process may still be writing."""
    return _NAME.fullmatch(name) is not None or temporaries.is_temporary(name)


def reap_once(directory: str) -> None:
    """Remove temporary directories of dead Triton processes in ``directory``, once per process. Raises no OSError.

    Removes those over a day old whose pid does not exist on this host.
    """
    if directory in _reaped.now:
        return
    _reaped.now.add(directory)
    root, key = os.path.split(directory)
    with suppress(OSError):
        # Its own name and "." in it: most file systems count what lies deeper too, and so tell that there is nothing.
        if filesystem.lstat(directory).st_nlink == 2:
            return
    with suppress(OSError), folders.open_subdirectory(root, [key]) as folder:
        for name in folder.list_names():
            writer = _NAME.fullmatch(name)
            with suppress(OSError):
                if writer and not _is_running(int(writer[1])):
                    status = folder.get_status(name)
                    if stat.S_ISDIR(status.st_mode) and time.time() - status.st_mtime >= _PATIENCE:
                        folder.remove(name)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


# <root>/aotautograd/<key>/<entry> and <root>/fxgraph/<two letters>/<key>/<entry>
AOT_FOLDER = "aotautograd"
FX_FOLDER = "fxgraph"
# <triton's cache>/<key>/<file>, where that is often <root>/triton/<device>
TRITON_FOLDER = "triton"
TRITON_KEY = re.compile(Kind.KERNEL.tiers.key)
# <root>/<two letters of the key>/<key>.<ending>
CODE_FOLDER = re.compile(r"[a-z2-7]{2}")


# <root>/dynamo/<key>/entry, and profiles
DYNAMO_FOLDER, PACKAGE_FILE = "dynamo", "entry"


class Location(NamedTuple):
    """Path of an entry file, with the kind and the cache key that this path states."""

    path: str
    kind: Kind
    cache_key: str


class CodeFile(NamedTuple):
    """File that has a record, and no seal of its own; ``root``: the cache that keeps the record.

    ``name``: its name in the record, where that does not follow from ``path``.
    """

    path: str
    root: str = ""
    kind: Kind = Kind.NATIVE_CODE
    name: str = ""


def name_entry(content: bytes) -> str:
    """Return the file name that torch gives an entry of this content: its SHA-256 in base 32, by sha256_hash()."""
    return base64.b32encode(hashlib.sha256(content).digest())[:51].decode().lower()


def find_cache_root(path: str) -> str:
    """Return the cache directory that contains the entry at ``path``; the entry's own directory if none does."""
    directory = os.path.dirname(path)
    above = os.path.dirname(os.path.dirname(path))
    if os.path.basename(above) == AOT_FOLDER:
        return os.path.dirname(above)
    above = os.path.dirname(above)
    return os.path.dirname(above) if os.path.basename(above) == FX_FOLDER else directory


def locate(path: str) -> Location | None:
    """Return the kind and key of the entry at ``path``, by that path alone; None if torch keeps no entries there."""
    path = os.path.abspath(path)
    directory, above = os.path.dirname(path), os.path.dirname(os.path.dirname(path))
    if os.path.basename(above) == AOT_FOLDER:
        return Location(path, Kind.AOT_ENTRY, os.path.basename(directory))
    if os.path.basename(os.path.dirname(above)) == FX_FOLDER:
        return Location(path, Kind.FX_ENTRY, os.path.basename(directory))
    return None


def list_entries(directory: str) -> list[str]:
    """Return the names of the entries in ``directory``, sorted; none if it does not exist. Raises OSError."""
    try:
        names = filesystem.retry(lambda: folders.list_directory(directory), filesystem.READING)
    except FileNotFoundError:
        return []
    return sorted(name for name in names if not name.startswith("."))


def walk(root: str) -> Iterator[Location]:
    """Yield the location of every entry below the cache directory ``root``, whatever its file type. Raises OSError."""
    config.name_cache(root)
    for kind, parents in (
        (Kind.AOT_ENTRY, [os.path.join(root, AOT_FOLDER)]),
        (Kind.FX_ENTRY, list(_iter_subdirectories(os.path.join(root, FX_FOLDER)))),
    ):
        for parent in parents:
            for directory in _iter_subdirectories(parent):
                for name in list_entries(directory):
                    yield Location(os.path.join(directory, name), kind, os.path.basename(directory))


def walk_code(root: str) -> Iterator[CodeFile]:
    """Yield every file of compiled code below the cache directory ``root``, Inductor's and Triton's. Raises OSError."""
    config.name_cache(root)
    for cache in find_triton_caches(root):
        yield from _walk_code_in(cache)


def _walk_code_in(root: str) -> Iterator[CodeFile]:
    for directory in _iter_subdirectories(root):
        if TRITON_KEY.fullmatch(os.path.basename(directory)):
            for name in list_entries(directory):
                if not is_temporary(name):
                    yield CodeFile(os.path.join(directory, name), root, Kind.KERNEL)
        else:
            for name in list_entries(directory):
                if name.endswith((".so", ".o")):
                    yield CodeFile(os.path.join(directory, name), root)


def find_triton_caches(root: str) -> Iterator[str]:
    """Yield the directories in which Triton's keys may be: ``root`` and Inductor's folders in it. Raises OSError."""
    yield root
    yield from _iter_subdirectories(os.path.join(root, TRITON_FOLDER))


def find_triton_siblings(root: str, environ: Mapping[str, str]) -> list[str]:
    """Return the other caches in which this user's programs may have kept the kernels of the cache ``root``.

    For one of Inductor's folders for Triton, that is Triton's own cache; for that, those folders; else none. In vLLM,
    whose models have caches of their own in one process, it is the caches of all models and Triton's own.
    """
    own, here = os.path.abspath(_find_home_cache(environ)), os.path.abspath(root)
    with suppress(OSError):  # what cannot be listed, or has no place at all, holds nothing for us
        inductor = inductor_cache_dir(environ)
        vllm, is_vllm, _ = inductor.rpartition(f"/{VLLM_FOLDER}/")
        if is_vllm and (here == own or here.startswith(vllm + is_vllm)):
            found = [own, *(cache for each in find_vllm_caches(vllm + is_vllm) for cache in find_triton_caches(each))]
            return [cache for cache in found if cache != here]
        folder = os.path.join(inductor, TRITON_FOLDER)
        if here == own:
            return list(_iter_subdirectories(folder))
        return [own] if os.path.dirname(here) == folder else []
    return []


# vLLM has torch and Triton keep theirs in directories of these names, in others of its own.
VLLM_CACHES = ("inductor_cache", "triton_cache")
# The directory of it all.
VLLM_FOLDER = "torch_compile_cache"
# Below those, <hash>/rank_0_0/<part> has the table of a part's artifacts, and the artifacts, as they are listed there.
VLLM_TABLE = "vllm_compile_cache.py"
VLLM_ARTIFACT = re.compile(r"artifact_compile_range_[0-9A-Za-z_]+")
_OF_VLLM = re.compile(rf"{VLLM_FOLDER}|torch_aot_compile|[0-9a-f]{{10}}|[0-9a-f]{{64}}|rank_\d+_\d+")
_VLLM_DEPTH = 4


def vllm_cache_dir(environ: Mapping[str, str]) -> str:
    """Return the directory of all that vLLM compiles, whether it exists or not."""
    caches = environ.get("XDG_CACHE_HOME", os.path.join(os.path.expanduser("~"), ".cache"))
    root = environ.get("VLLM_CACHE_ROOT", os.path.join(caches, "vllm"))
    return os.path.join(os.path.abspath(os.path.expanduser(root)), VLLM_FOLDER)


def sglang_cache_dir(environ: Mapping[str, str]) -> list[str]:
    """Return the cache directories that SGLang gives torch and Triton, unless their own variables name others."""
    root = os.path.expanduser(environ.get("SGLANG_CACHE_DIR") or os.path.join("~", ".cache", "sglang"))
    return [os.path.join(os.path.abspath(root), name) for name in ("inductor", "triton")]


def find_vllm_caches(root: str, depth: int = _VLLM_DEPTH) -> Iterator[str]:
    """Yield the caches of torch and Triton that vLLM keeps below ``root``; none in other places. Raises OSError."""
    for path in _iter_subdirectories(root):
        if os.path.basename(path) in VLLM_CACHES:
            yield path
        elif depth and _OF_VLLM.fullmatch(os.path.basename(path)):
            yield from find_vllm_caches(path, depth - 1)


def _iter_subdirectories(directory: str) -> Iterator[str]:
    yield from (item.path for item in folders.list_items(directory) if item.is_directory)
