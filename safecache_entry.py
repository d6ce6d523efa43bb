"""What others name of safecache: the plugin loaders of vLLM and SGLang, and sources with the patch verified-loads.

They import this in processes that may have nothing to do with safecache. So it imports nothing of the package by
itself; and nothing becomes active because it loads it later, in vllm(), sglang() or the first call of a hook.
"""

from __future__ import annotations

import copy
import importlib
import os
import pkgutil
import sys
import types
from collections.abc import Callable
from threading import get_ident
from typing import Any

__all__ = ["hook", "is_loading", "sglang", "vllm"]

_EXIT_CONFIG = 78  # as safecache.settings.config has it

# Threads that load something of the package now, each as often as it does.
_loading: list[int] = []
# safecache.patching.in_source, when it is loaded.
_in_source: Any = None
_said: set[str] = set()
_made: tuple[Any, Any] | None = None


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
        try:
            plugins = _load("safecache._plugins")
        except Exception as error:
            _say(f"not active in this process: {type(error).__name__}: {error}")
            if _is_strict():
                os._exit(_EXIT_CONFIG)  # the loader would swallow an exception, and start the server
            return
        getattr(plugins, server)()


def is_loading() -> bool:
    """Whether this thread imports the package from here, so that it is to activate nothing."""
    return get_ident() in _loading


def _load(name: str) -> Any:
    """This module of the package. Raises whatever its import does."""
    _loading.append(get_ident())
    try:
        return importlib.import_module(name)
    finally:
        _loading.remove(get_ident())


def _is_strict() -> bool:
    # For when the package, which knows better, cannot be asked.
    switch, strict = (os.environ.get(name, "").strip().lower() for name in ("SAFECACHE", "SAFECACHE_STRICT"))
    return strict in ("1", "true", "yes", "on") and switch not in ("0", "false", "no", "off")


def _say(text: str) -> None:
    if text not in _said:
        _said.add(text)
        print(f"safecache: {text}", file=sys.stderr, flush=True)


def hook(name: str) -> Callable[[Any], Any]:
    """A decorator that puts on the hook ``module:function`` below safecache.hooks; it raises nothing.

    It imports wrapt and nothing else: torch imports some of these modules in each process, compile or not. The first
    call of any hook loads safecache, without activating it. From then on an import of it by the program finds it loaded
    and does not activate it either; safecache.activate() does.
    """

    def put_on(original: Any) -> Any:
        try:
            function, module = _wrappers()
        except Exception:  # wrapt is missing, or not what we know
            return original
        if isinstance(original, types.ModuleType):
            wrapper = module(original)
            wrapper._self_hook, wrapper._self_enabled = name, _is_on
        else:
            wrapper = function(original, _late(name), enabled=_is_on)
        wrapper._self_in_source = True
        return wrapper

    return put_on


def _late(name: str) -> Callable[..., Any]:
    """The hook, which is imported when it is called."""
    return lambda *call: _in_source.hook_function(name)(*call)


def _is_on() -> bool:
    """Whether hooks in the source are on. Not where safecache cannot be loaded, which is said once.

    That is raised in strict mode.
    """
    global _in_source
    if _in_source is None:
        try:
            _in_source = _load("safecache.patching.in_source")
        except Exception as error:
            _say(f"the hooks in the source are not on in this process: {type(error).__name__}: {error}")
            if _is_strict():
                raise
            return False
    return bool(_in_source.is_on())


def _wrappers() -> tuple[Any, Any]:
    """What is put on a function, and what on a module, such as ``pickle``."""
    global _made
    if _made is None:
        import wrapt

        bound = type("BoundWrapper", (_BoundWrapper, wrapt.BoundFunctionWrapper), {})
        function = type("Wrapper", (_Wrapper, wrapt.FunctionWrapper), {"__bound_function_wrapper__": bound})
        _made = function, type("ModuleWrapper", (_ModuleWrapper, wrapt.ObjectProxy), {})
    return _made


# The two that follow do as those of safecache.patching.patching, which is not to be loaded, do.
class _BoundWrapper:
    """Pickles and copies as the method does, of its instance or class."""

    __wrapped__: Any

    def __reduce_ex__(self, protocol: Any) -> Any:
        method = self.__wrapped__
        if isinstance(method, types.MethodType):
            return getattr, (method.__self__, method.__name__)
        return _by_name(method)

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        method = self.__wrapped__
        if not isinstance(method, types.MethodType):
            return self
        return getattr(copy.deepcopy(method.__self__, memo), method.__name__)


class _Wrapper:
    """Pickles by name and copies as itself, as the function does."""

    __qualname__: str

    def __reduce_ex__(self, protocol: Any) -> Any:
        has_name = "<locals>" not in self.__qualname__
        imported = getattr(sys.modules[self.__module__], self.__qualname__, None) is not self
        return _by_name(self) if imported and has_name else self.__qualname__

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self


def _by_name(function: Any) -> tuple[Any, tuple[str]]:
    return pkgutil.resolve_name, (f"{function.__module__}:{function.__qualname__}",)


class _ModuleWrapper:
    """A module whose functions are those of the stand-in that the hook makes of it, once one is asked for."""

    __wrapped__: Any
    _self_hook: str

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.__wrapped__, name)
        # Of the classes there, modules make their own while they are imported.
        if not callable(found) or isinstance(found, type) or not _is_on():
            return found
        return getattr(_in_source.hook_function(self._self_hook)(self.__wrapped__, enabled=_is_on), name)
