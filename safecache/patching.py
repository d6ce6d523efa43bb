"""Puts one hook on one target, and takes it off again; stands down, by name, where the target is not what we know."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import types
from enum import Enum
from typing import Any, NamedTuple

import wrapt

from safecache import events, provenance, targets
from safecache.reasons import Reason
from safecache.targets import Target

__all__ = ["HookStatus", "Patch", "StandDown", "StandDownError", "signature_of"]


class HookStatus(NamedTuple):
    """One hook: ``state`` as Patch.state() has it, and for one standing down the ``reason``."""

    name: str
    state: str
    reason: str


class StandDown(Enum):
    """Why a hook was not put on."""

    UNKNOWN_VERSION = "unknown torch version"
    NOT_FOUND = "not found"
    UNKNOWN_SIGNATURE = "unknown signature"
    HOOK_FAILED = "hook failed"


class StandDownError(Exception):
    """The target is not what the table says."""

    def __init__(self, why: StandDown, detail: str) -> None:
        super().__init__(f"{why.value}: {detail}")


class Patch:
    """One hook and its target, over its life: on, off, on again, or standing down."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.reason = ""
        self._module: types.ModuleType | None = None
        self._handle: Any = None
        self._enabled = False

    def apply(self, module: types.ModuleType) -> None:
        """Put the hook on; if that cannot be done, note and report why. Never raises an Exception in default mode."""
        try:
            self._apply(module)
            self.reason = ""
        except Exception as error:
            stood_down = error if isinstance(error, StandDownError) else _failed(error)
            self.reason = str(stood_down)
            events.report(
                Reason.STOOD_DOWN,
                f"the hook on {self.target.name} stands down: {self.reason}.",
                cause=self.target.name,
                remedy="What it guards is as in stock torch; a newer safecache may know this release.",
                error=error,
            )

    def _apply(self, module: types.ModuleType) -> None:
        _check_version()
        original = _resolve(module, self.target.attribute)
        if module is self._module and wrapt.find_wrapper(original, self._handle) is not None:
            self._enabled = True  # still in the chain, below what somebody wrapped around it
            return
        _check_signature(original, self.target.signatures)
        self._handle = wrapt.wrap_object(module, self.target.attribute, self._factory())
        self._module = module
        self._enabled = True

    def _factory(self) -> Any:
        if self.target.signatures == (targets.PICKLE_MODULE,):
            from safecache.saving import SealingPickle

            return SealingPickle
        hook_module, _, function = self.target.hook.partition(":")
        hook = getattr(importlib.import_module(f"safecache.hooks.{hook_module}"), function)
        # Off, a hook that cannot be unwrapped passes every call straight on.
        return lambda original: wrapt.FunctionWrapper(original, hook, enabled=lambda: self._enabled)

    def revert(self) -> None:
        """Take the hook off: the original object is back, or only what others wrapped around it remains."""
        self._enabled = False
        self.reason = ""
        if self._module is None or self._handle is None:
            return
        try:
            wrapt.unwrap_object(self._module, self.target.attribute, self._handle, missing_ok=True)
        except wrapt.WrapperNotOutermostError:
            return  # under a plain closure, which holds on to us: switched off, and found again by _apply
        self._module = self._handle = None

    def state(self) -> str:
        """``active``, ``standing down``, ``overwritten``, ``inactive`` or ``not yet imported``."""
        module = sys.modules.get(self.target.module)
        if self.reason:
            return "standing down"
        if self._enabled and module is not None:
            found = module is self._module and self._in_chain(module)
            return "active" if found else "overwritten"
        return "not yet imported" if module is None else "inactive"

    def _in_chain(self, module: types.ModuleType) -> bool:
        try:
            return wrapt.find_wrapper(_resolve(module, self.target.attribute), self._handle) is not None
        except StandDownError:
            return False


def _failed(error: Exception) -> StandDownError:
    return StandDownError(StandDown.HOOK_FAILED, f"{type(error).__name__}: {error}")


def _check_version() -> None:
    text = provenance.torch_version()
    digits = re.match(r"(\d+)\.(\d+)", text)
    version = (int(digits[1]), int(digits[2])) if digits else (0, 0)
    if not targets.TORCH_FROM <= version < targets.TORCH_UNTIL:
        known = "{}.{} to before {}.{}".format(*targets.TORCH_FROM, *targets.TORCH_UNTIL)
        raise StandDownError(StandDown.UNKNOWN_VERSION, f"{text}, known are {known}")


def _resolve(module: types.ModuleType, attribute: str) -> Any:
    try:
        return wrapt.resolve_path(module, attribute)[2]
    except (AttributeError, wrapt.PathResolutionError) as error:
        raise StandDownError(StandDown.NOT_FOUND, str(error)) from error


def _check_signature(original: Any, known: tuple[str, ...]) -> None:
    found = signature_of(original)
    if found not in known:
        raise StandDownError(StandDown.UNKNOWN_SIGNATURE, f"({found}), known are {' and '.join(map(repr, known))}")


def signature_of(original: Any) -> str:
    """The signature in the notation of the table; of a module, its name."""
    if isinstance(original, types.ModuleType):
        return f"<module {original.__name__}>"
    function = getattr(original, "__func__", original)
    return ", ".join(
        ("*" if parameter.kind is parameter.KEYWORD_ONLY else "")
        + parameter.name
        + ("" if parameter.default is parameter.empty else "=")
        for parameter in inspect.signature(function).parameters.values()
    )
