"""What torch and Triton import where the source patch verified-loads is applied to them (patches/).

Their decorators put the same hooks on that patching puts on, and nothing else of safecache becomes active by that. It
does with the first import by anybody else.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from opcode import opmap
from types import FrameType, ModuleType
from typing import Any

import safecache
from safecache.errors import ConfigError, VerifierError
from safecache.patching import activation, patching, targets
from safecache.settings import config

__all__ = ["hook"]

_package = sys.modules["safecache"]
# Why no hook is put on in this process, if none is.
_problem = ""
_broken: set[str] = set()


def hook(name: str) -> Callable[[Any], Any]:
    """A decorator that puts on the hook ``module:function`` below safecache.hooks; it raises nothing.

    The hook is imported by its first call: torch imports some of these modules in each process, compile or not.
    """

    def put_on(original: Any) -> Any:
        if _problem:
            return original
        wrapper = patching.wrapped(original, _Late(name), activation.are_source_hooks_on)
        if wrapper is not original:
            wrapper._self_in_source = True
        return wrapper

    return put_on


class _Late:
    """A hook that is imported when it is called; one that cannot be passes the call on, and says so once."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._function: Callable[..., Any] | None = None

    def __call__(self, wrapped: Any, *args: Any, **kwargs: Any) -> Any:
        if self._function is None:
            self._function = self._imported()
        return self._function(wrapped, *args, **kwargs)

    def _imported(self) -> Callable[..., Any]:
        try:
            function: Callable[..., Any] = patching.hook_function(self._name)
        except Exception as error:
            text = f"{self._name} is as in stock torch: {type(error).__name__}: {error}"
            if config.current().strict and self._name in targets.VERIFYING:
                raise VerifierError(f"safecache: {text}") from error
            _say(text)
            return _as_in_stock
        return function


def _as_in_stock(wrapped: Any, *call: Any, **_: Any) -> Any:
    """Both a hook on a function, called with instance, args and kwargs, and one on the module ``pickle``."""
    if not call:
        return wrapped
    args, kwargs = call[1:]
    return wrapped(*args, **kwargs)


def _say(text: str) -> None:
    if text not in _broken:
        _broken.add(text)
        print(f"safecache: {text}", file=sys.stderr)


class _Sleeping(ModuleType):
    """The package until somebody else than a patched source imports it: each import asks a module for its spec.

    Importlib must have it in sys.modules till then, and so would not execute it again, which is what activates.
    """

    @property
    def __spec__(self) -> Any:
        if _is_imported_by_others(sys._getframe(1)):
            _wake()
        return vars(self)["__spec__"]

    @__spec__.setter
    def __spec__(self, spec: Any) -> None:
        vars(self)["__spec__"] = spec


def _is_imported_by_others(frame: FrameType | None) -> bool:
    """Whether that asks for the spec in an import: a repr() is none, and what _plugins is for is decided later."""
    importlib_asks = False
    while frame is not None and _package_of(frame) in ("importlib", "_frozen_importlib"):
        if frame.f_locals.get("name") == "safecache._plugins":
            return False
        importlib_asks = importlib_asks or frame.f_code.co_name.startswith("_find_and_load")
        frame = frame.f_back
    if frame is None or _package_of(frame) == "safecache":
        return False
    return importlib_asks or frame.f_code.co_code[frame.f_lasti] == opmap["IMPORT_NAME"]


def _package_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]


def _wake() -> None:
    _package.__class__ = ModuleType
    safecache._dormant = False
    try:
        if config.current().enabled and not activation.was_switched():
            activation.activate()
    except ConfigError as error:  # raised here it would be swallowed by the import statement, up to Python 3.11
        _say(f"not active in this process: {error}")


def _start() -> str:
    try:
        config.current()
    except ConfigError as error:
        _say(f"the hooks in the source are not on in this process: {error}")
        return str(error)
    if config.is_one():
        from safecache.tiers import directory_faults, fallback

        directory_faults.leave_to_parent()
        fallback.leave_to_parent()
    return ""


if safecache._dormant:
    _package.__class__ = _Sleeping
_problem = _start()
