"""The entry points that the plugin loaders of vLLM and SGLang name.

They import this in processes that may have nothing to do with safecache. So it imports nothing of the package by
itself; and nothing becomes active because vllm() or sglang() loads it.
"""

from __future__ import annotations

import importlib
import os
import sys
from threading import get_ident

__all__ = ["is_loading", "sglang", "vllm"]

_EXIT_CONFIG = 78  # as safecache.settings.config has it

# Threads that load the package now.
_loading: list[int] = []


def vllm() -> None:
    """Activate safecache in this process of vLLM as safecache._plugins does, if a setting asks for it: any that is set.

    Without, none of safecache is imported, and an import of it by the program activates as ever. With SAFECACHE=0
    nothing becomes active. Ends the process, with code 78, as that module does.
    """
    _plug_in("vllm")


def sglang() -> None:
    """Activate safecache in this process of SGLang, likewise."""
    _plug_in("sglang")


def _plug_in(server: str) -> None:
    if any(name.startswith("SAFECACHE") and text for name, text in os.environ.items()):
        _loading.append(get_ident())
        try:
            plugins = importlib.import_module("safecache._plugins")
        except Exception as error:
            text = f"not active in this process: {type(error).__name__}: {error}"
            print(f"safecache: {text}", file=sys.stderr, flush=True)
            if _is_strict():
                os._exit(_EXIT_CONFIG)  # the loader would swallow an exception, and start the server
            return
        finally:
            _loading.remove(get_ident())
        getattr(plugins, server)()


def is_loading() -> bool:
    """Tell whether this thread imports the package from here, so that the import must activate nothing."""
    return get_ident() in _loading


def _is_strict() -> bool:
    # For when the package, which knows better, cannot be asked.
    switch, strict = (os.environ.get(name, "").strip().lower() for name in ("SAFECACHE", "SAFECACHE_STRICT"))
    is_on = any(word.strip() in ("1", "true", "yes", "on") for word in strict.split(","))
    return is_on and switch not in ("0", "false", "no", "off")
