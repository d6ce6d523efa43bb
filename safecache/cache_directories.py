"""The cache directories that torch and Triton would use under an environment, without importing either.

Source: ``cache_dir`` and ``default_cache_dir`` in torch/_inductor/runtime/cache_dir_utils.py, ``_HEADER_DIR`` in
torch/_inductor/codecache.py, ``cache_knobs`` in triton/knobs.py. The same in torch 2.11 to 2.15.
"""

from __future__ import annotations

import getpass
import os
import re
import tempfile
from collections.abc import Mapping
from contextlib import suppress

from safecache import levels

__all__ = ["HEADERS_FOLDER", "existing", "of_inductor", "of_triton", "shared", "whole"]

HEADERS_FOLDER = "precompiled_headers"


def existing(environ: Mapping[str, str]) -> list[str]:
    """Those that exist: of Inductor, of its precompiled headers, of Triton; none that lies in another of them.

    Of Inductor the local level, where there is to be one, for the shared one is not this node's alone.
    """
    candidates = []
    for find in (_of_this_node, _headers, of_triton):
        with suppress(FileNotFoundError):
            candidates.append(find(environ))
    found: list[str] = []
    for path in (os.path.realpath(candidate) for candidate in candidates):
        inside = any(f"{path}/".startswith(f"{other}/") for other in found)
        if os.path.isdir(path) and not inside:
            found = [other for other in found if not other.startswith(f"{path}/")] + [path]
    return found


def _of_this_node(environ: Mapping[str, str]) -> str:
    inductors = of_inductor(environ)
    return levels.place_of(inductors) or inductors


def shared(environ: Mapping[str, str]) -> str | None:
    """The cache that this node has a local level before, which is known as that from now on; None if it has none."""
    inductors = levels.shared_of(of_inductor(environ))
    place = levels.place_of(inductors)
    if place is None:
        return None
    levels.know(place, inductors)
    return inductors


def _headers(_: Mapping[str, str]) -> str:
    return os.path.join(_default(), HEADERS_FOLDER)


def of_inductor(environ: Mapping[str, str]) -> str:
    """Inductor's, whether it exists or not. Raises FileNotFoundError where there is no temporary directory for it."""
    return os.path.abspath(environ.get("TORCHINDUCTOR_CACHE_DIR") or _default())


def of_triton(environ: Mapping[str, str]) -> str:
    """Triton's own, likewise."""
    home = environ.get("TRITON_HOME") or os.path.expanduser("~")
    return environ.get("TRITON_CACHE_DIR") or os.path.join(home, ".triton", "cache")


def whole(root: str, environ: Mapping[str, str]) -> str:
    """The cache that ``root`` is part of: Inductor's has those of Triton for each device, and perhaps the headers."""
    # Torch sets it when it first asks for the directory.
    cache = environ.get("TORCHINDUCTOR_CACHE_DIR")
    if cache and root.startswith(os.path.join(cache, "")):
        return cache
    above = os.path.dirname(root)
    return above if os.path.basename(above) == HEADERS_FOLDER else root


def _default() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, ModuleNotFoundError, OSError):
        user = f"uid_{os.getuid()}"
    return os.path.join(tempfile.gettempdir(), "torchinductor_" + re.sub(r'[\\/:*?"<>|]', "_", user))
