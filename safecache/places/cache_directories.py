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

__all__ = ["HEADERS_FOLDER", "of_headers", "of_inductor", "of_triton", "whole"]

HEADERS_FOLDER = "precompiled_headers"


def of_inductor(environ: Mapping[str, str]) -> str:
    """Inductor's, whether it exists or not. Raises FileNotFoundError where there is no temporary directory for it."""
    return os.path.abspath(environ.get("TORCHINDUCTOR_CACHE_DIR") or _default())


def of_headers(_: Mapping[str, str]) -> str:
    """Inductor's precompiled headers, likewise."""
    return os.path.join(_default(), HEADERS_FOLDER)


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
