"""Application of a hook to its target, and its removal; a hook stands down, with a report, on an unexpected target."""

from __future__ import annotations

import builtins
import contextlib
import copy
import inspect
import os
import pkgutil
import sys
import types
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

from wrapt import (
    BoundFunctionWrapper,
    FunctionWrapper,
    PathResolutionError,
    WrapperNotOutermostError,
    resolve_path,
    unwrap_object,
    wrap_object,
)

from safecache.errors import VerifierError
from safecache.patching import hook as hooks
from safecache.patching.hook import Hook, HookState
from safecache.reporting import events
from safecache.reporting.kinds import Reason
from safecache.settings import config
from safecache.signing import provenance

__all__ = ["Patch", "StandDown", "StandDownError", "check_version", "format_signature", "wrap_original"]


_DEEPEST_CHAIN = 100
_REMEDY = "That function works as in stock torch. Help: upgrade safecache, which may know this release"
_STRICT_REMEDY = (
    "Strict mode refuses to start. Help: upgrade safecache (this release supports torch {}.{} to before {}.{}), or set"
    " SAFECACHE_STRICT=0 to run without this check"
).format(*hooks.TORCH_FROM, *hooks.TORCH_UNTIL)


class StandDown(Enum):
    """Reason why a hook was not put on."""

    UNKNOWN_VERSION = "unknown torch version"
    NOT_FOUND = "not found"
    UNKNOWN_SIGNATURE = "unknown signature"
    HOOK_FAILED = "hook failed"


class StandDownError(Exception):
    """Difference between a target and its description in the table; ``why``: its class."""

    def __init__(self, why: StandDown, detail: str) -> None:
        super().__init__(f"{why.value}: {detail}")
        self.why = why


class _Layer:
    """Wrapper that was put on a target. While disabled it passes every call straight through."""

    def __init__(self) -> None:
        self.wrapper: Any = None
        self.enabled = True

    def is_below(self, outermost: Any) -> bool:
        """Tell whether a call of ``outermost`` reaches the wrapper, as far as ``__wrapped__`` shows."""
        # A closure is usually made over the bound form of our wrapper.
        return any(self.wrapper is each or self.wrapper is parent for each, parent in _iter_chain(outermost))


def _iter_chain(outermost: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each callable of the chain of ``__wrapped__``, and the wrapper that it is the bound form of, or None."""
    wrapper = outermost
    for _ in range(_DEEPEST_CHAIN):
        yield wrapper, getattr(wrapper, "_self_parent", None)
        wrapper = getattr(wrapper, "__wrapped__", None)
        if wrapper is None:
            return


def wrap_original(original: Any, function: Any, enabled: Callable[[], bool]) -> Any:
    """Return ``original``, a function, module or path, wrapped by the hook ``function``, on while ``enabled()``."""
    if isinstance(original, (types.ModuleType, os.PathLike)):
        return function(original, enabled=enabled)
    return _Wrapper(original, function, enabled=enabled)


def _reduce_to_name(function: Any) -> tuple[Any, tuple[str]]:
    return pkgutil.resolve_name, (f"{function.__module__}:{function.__qualname__}",)


class _BoundWrapper(BoundFunctionWrapper[Any, Any]):
    """Pickles and copies like the method of its instance or class: autotuners hold some methods that we wrap."""

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        method = self.__wrapped__
        if isinstance(method, types.MethodType):
            return getattr, (method.__self__, method.__name__)
        return _reduce_to_name(method)

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        method = self.__wrapped__
        if not isinstance(method, types.MethodType):
            return self
        return getattr(copy.deepcopy(method.__self__, memo), method.__name__)


class _Wrapper(FunctionWrapper[Any, Any]):
    """Pickles by name and copies as itself, like the function: torch sends some to its compile workers."""

    __bound_function_wrapper__ = _BoundWrapper

    def __reduce_ex__(self, protocol: Any) -> Any:
        # A function defined in another cannot be found by its name: pickle refuses it, as in stock torch.
        has_name = "<locals>" not in self.__qualname__
        imported = getattr(sys.modules[self.__module__], self.__qualname__, None) is not self
        return _reduce_to_name(self) if imported and has_name else self.__qualname__

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self


class Patch:
    """State of one hook on its target: on, off, on again, or standing down."""

    def __init__(self, hook: Hook) -> None:
        self.hook = hook
        self.reason = ""
        self._module: types.ModuleType | None = None
        # All that were ever put on: the end of a mock, or a closure kept elsewhere, can restore one that was taken off.
        self._layers: list[_Layer] = []

    def apply(self, module: types.ModuleType) -> None:
        """Put the hook on; if that is impossible, note and report why.

        Raises VerifierError in strict mode if the hook is a verifying one, and no other Exception.
        """
        try:
            self._apply(module)
            self.reason = ""
        except Exception as error:
            stood_down = StandDownError(StandDown.HOOK_FAILED, f"{type(error).__name__}: {error}")
            if isinstance(error, StandDownError):
                stood_down = error
            self.reason = str(stood_down)
            all_alike = stood_down.why is StandDown.UNKNOWN_VERSION
            which = "every hook" if all_alike else f"the hook on {self.hook.name}"
            events.report(
                Reason.STOOD_DOWN,
                f"{which} is inactive",
                why=self.reason,
                cause=which,
                remedy=_REMEDY,
                error=error,
            )
            if config.current().strict and self.hook.verifies:
                text = f"safecache: cannot verify loads through {self.hook.name}: {self.reason}. {_STRICT_REMEDY}"
                raise VerifierError(text) from error

    def _apply(self, module: types.ModuleType) -> None:
        check_version()
        if self.hook.is_not_for(provenance.torch_release()):
            return
        if self.hook.is_on_builtin:
            vars(module).setdefault(self.hook.attribute, getattr(builtins, self.hook.attribute))
        original = _resolve_attribute(module, self.hook.attribute)
        if self._is_in_source(module):
            return
        self._module = module
        present = next((layer for layer in self._layers if layer.is_below(original)), None)
        if present is None:
            found, known = format_signature(original), self.hook.signatures
            if found not in known:
                text = f"({found}), known are {' and '.join(map(repr, known))}"
                raise StandDownError(StandDown.UNKNOWN_SIGNATURE, text)
            present = _Layer()
            present.wrapper = wrap_object(module, self.hook.attribute, self._make_factory(present))
            self._layers.append(present)
        for layer in self._layers:
            layer.enabled = layer is present
        self._replace_copies(present.wrapper.__wrapped__, present.wrapper)

    def _is_in_source(self, module: types.ModuleType) -> bool:
        """Tell whether a source patch (patches/) already does the hook's work."""
        return bool(self.hook.marker) and getattr(module, self.hook.marker, False) is True

    def _make_factory(self, layer: _Layer) -> Any:
        return lambda original: wrap_original(original, self.hook.function, lambda: layer.enabled)

    def revert(self) -> None:
        """Take the hook off: restores the original object, or leaves only what others have wrapped around it."""
        self.reason = ""
        for layer in self._layers:
            layer.enabled = False
            self._replace_copies(layer.wrapper, layer.wrapper.__wrapped__)
            if self._module is not None:
                with contextlib.suppress(WrapperNotOutermostError):  # under a plain closure it can only be disabled
                    unwrap_object(self._module, self.hook.attribute, layer.wrapper, missing_ok=True)
        found = vars(self._module or object).get(self.hook.attribute)
        if self.hook.is_on_builtin and found is getattr(builtins, self.hook.attribute):
            delattr(self._module, self.hook.attribute)

    def _replace_copies(self, old: Any, new: Any) -> None:
        for name in self.hook.copies:
            holder = vars(sys.modules.get(name, object))
            if holder.get(self.hook.attribute) is old:
                setattr(sys.modules[name], self.hook.attribute, new)

    def find_state(self) -> HookState:
        """Return the state: not NOT_FOR_TORCH, which is known before there is a patch."""
        module = sys.modules.get(self.hook.module)
        if self.reason:
            return HookState.STANDING_DOWN
        if module is None:
            return HookState.NOT_IMPORTED
        enabled = next((layer for layer in self._layers if layer.enabled), None)
        try:
            found = _resolve_attribute(module, self.hook.attribute)
        except StandDownError:
            return HookState.INACTIVE if enabled is None else HookState.OVERWRITTEN
        if enabled is not None:
            return HookState.ACTIVE if enabled.is_below(found) else HookState.OVERWRITTEN
        return HookState.IN_SOURCE if self._is_in_source(module) else HookState.INACTIVE


def check_version() -> None:
    """Raise StandDownError for a release of torch that the table does not cover."""
    if not hooks.TORCH_FROM <= provenance.torch_release() < hooks.TORCH_UNTIL:
        known = "{}.{} to before {}.{}".format(*hooks.TORCH_FROM, *hooks.TORCH_UNTIL)
        raise StandDownError(StandDown.UNKNOWN_VERSION, f"{provenance.torch_version()}, known are {known}")


def _resolve_attribute(module: types.ModuleType, attribute: str) -> Any:
    try:
        return resolve_path(module, attribute)[2]
    except (AttributeError, PathResolutionError) as error:
        raise StandDownError(StandDown.NOT_FOUND, str(error)) from error


def format_signature(original: Any) -> str:
    """Return the signature in the notation of the table; for a module, its name."""
    if isinstance(original, types.ModuleType):
        return f"<module {original.__name__}>"
    if isinstance(original, os.PathLike):
        return hooks.PATH
    function = getattr(original, "__func__", original)
    if type(function) is types.FunctionType and not vars(function):
        return _format_plain(function)
    return ", ".join(
        ("*" if parameter.kind is parameter.KEYWORD_ONLY else "")
        + parameter.name
        + ("" if parameter.default is parameter.empty else "=")
        for parameter in inspect.signature(function).parameters.values()
    )


def _format_plain(function: types.FunctionType) -> str:
    """Return the same for a function without attributes, in a thirtieth of the time of inspect.signature."""
    code = function.__code__
    positional, keyword_only = code.co_argcount, code.co_kwonlyargcount
    names = list(code.co_varnames)
    defaults = len(function.__defaults__ or ())
    found = [f"{name}=" if place >= positional - defaults else name for place, name in enumerate(names[:positional])]
    rest = names[positional + keyword_only :]
    if code.co_flags & inspect.CO_VARARGS:
        found.append(rest.pop(0))
    with_default = function.__kwdefaults__ or {}
    for name in names[positional : positional + keyword_only]:
        found.append(f"*{name}=" if name in with_default else f"*{name}")
    if code.co_flags & inspect.CO_VARKEYWORDS:
        found.append(rest[0])
    return ", ".join(found)
