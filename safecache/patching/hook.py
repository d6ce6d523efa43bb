"""Descriptions of hooks, by a decorator on the function that is called in place of the upstream one, and their states.

Signatures are parameter names in order, "=" after one with a default, "*" before one that is keyword-only, as the
released wheels have them.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import partial
from types import FunctionType, ModuleType
from typing import Any, NamedTuple, TypeVar

__all__ = [
    "BUILTIN_OPEN",
    "IMPORTLIB_MODULE",
    "OS_MODULE",
    "PATH",
    "PICKLABLE_LAUNCHERS",
    "PICKLE_MODULE",
    "SYMPY_MODULE",
    "TORCH_FROM",
    "TORCH_MODULE",
    "TORCH_UNTIL",
    "TRITON_FROM",
    "TRITON_UNTIL",
    "Hook",
    "HookState",
    "HookStatus",
    "find_hooks",
    "hook",
    "verifier",
]

# From the first up to, but not including, the second: the releases the suite runs on.
TORCH_FROM = (2, 11)
TORCH_UNTIL = (2, 16)
TRITON_FROM = (3, 6)
TRITON_UNTIL = (3, 10)
# In place of a signature: the symbol is a module global, a module or a path, which a proxy replaces.
PICKLE_MODULE, OS_MODULE, TORCH_MODULE = "<module pickle>", "<module os>", "<module torch>"
SYMPY_MODULE, IMPORTLIB_MODULE, PATH = "<module sympy>", "<module importlib>", "<path>"
# The marker in the modules that the source patch picklable-launchers changes.
PICKLABLE_LAUNCHERS = "_safecache_picklable_launchers"
# The signature of a built-in function, which the module calls and does not have.
BUILTIN_OPEN = "file, mode=, buffering=, encoding=, errors=, newline=, closefd=, opener="
_HOOKS = "_safecache_hooks"

Function = TypeVar("Function", bound=Callable[..., Any])


class HookState(str, Enum):
    """State of a hook. A member equals, and prints as, the word that reports have for it."""

    ACTIVE = "active"
    IN_SOURCE = "in the source"
    NOT_FOR_TORCH = "not for this torch"
    SWITCHED_OFF = "switched off"
    NOT_IMPORTED = "not yet imported"
    STANDING_DOWN = "standing down"
    OVERWRITTEN = "overwritten"
    INACTIVE = "inactive"

    @property
    def is_on(self) -> bool:
        """Tell whether the hook, or the source itself, does the work."""
        return self in (HookState.ACTIVE, HookState.IN_SOURCE)

    @property
    def is_healthy(self) -> bool:
        """Tell whether all is as the user wants it: it is on, this torch has no use for it, or it is switched off."""
        return self.is_on or self in (HookState.NOT_FOR_TORCH, HookState.SWITCHED_OFF)

    __str__, __repr__ = str.__str__, str.__repr__


class HookStatus(NamedTuple):
    """State of one hook. ``name``: its target, "module.attribute". ``reason``: for the state; may be ""."""

    name: str
    state: HookState
    reason: str
    unit: str


class Hook(NamedTuple):
    """Function of safecache and the upstream symbol that it wraps. See hook() for the fields."""

    function: Callable[..., Any]
    module: str
    attribute: str
    signatures: tuple[str, ...]
    verifies: bool
    why: str
    issue: str
    since: tuple[int, int]
    until: tuple[int, int]
    copies: tuple[str, ...]
    marker: str
    needs: str
    instead: str

    @property
    def name(self) -> str:
        """Target of the hook, "module.attribute", as in status() and warnings."""
        return f"{self.module}.{self.attribute}"

    @property
    def label(self) -> str:
        """Function of the hook in the notation of sinks.txt: ``module:function``, below safecache.integrations."""
        module = self.function.__module__.removeprefix("safecache.").removeprefix("integrations.")
        return f"{module}:{self.function.__name__}"

    @property
    def is_on_builtin(self) -> bool:
        """Tell whether the symbol is a built-in function, which the module has only once it is hooked."""
        return self.signatures == (BUILTIN_OPEN,)

    def is_not_for(self, torch: tuple[int, int]) -> bool:
        """Tell whether this supported release of torch lacks the symbol, or does not need the hook any more."""
        return TORCH_FROM <= torch < self.since or self.until <= torch < TORCH_UNTIL


def hook(
    targets: str | tuple[str, ...],
    *signatures: str,
    why: str,
    issue: str,
    verifies: bool = False,
    since: tuple[int, int] = TORCH_FROM,
    until: tuple[int, int] = TORCH_UNTIL,
    copies: tuple[str, ...] = (),
    marker: str = "",
    needs: str = "",
    instead: str = "",
) -> Callable[[Function], Function]:
    """Decorate a function as the hook on each of ``targets``, ``module:attribute`` or ``module:attribute(signature)``.

    ``signatures``: those that the target may have; with any other the hook stands down. ``why``: the defect upstream;
    ``issue``: a link to it. ``verifies``: the hook seals, verifies, or makes sure that a refused file is recompiled.
    Strict mode does not start without such a hook. ``since``: the first torch with the symbol. ``until``: the first
    that does not need the hook. ``copies``: modules that import the symbol by name. ``marker``: an attribute that the
    module has if a source patch (patches/) does all of the hook's work. ``needs``: the package without which the module
    cannot be imported, by default its own. ``instead``: the hook that upstream supports, and why that is not enough.
    """

    def describe(function: Function) -> Function:
        rows = []
        for target in (targets,) if isinstance(targets, str) else targets:
            module, _, attribute = target.partition(":")
            attribute, bracket, signature = attribute.partition("(")
            known = (signature.removesuffix(")"), *signatures) if bracket else signatures
            place = function, module, attribute, known, verifies, why, issue, since, until, copies, marker
            rows.append(Hook(*place, needs or module.partition(".")[0], instead))
        vars(function)[_HOOKS] = [*rows, *vars(function).get(_HOOKS, ())]  # the lowest decorator is called first
        return function

    return describe


verifier = partial(hook, verifies=True)


def find_hooks(module: ModuleType) -> list[Hook]:
    """Return the hooks described in one of safecache's modules, in the order of its text."""
    functions = [each for each in vars(module).values() if isinstance(each, FunctionType)]
    return [row for each in functions if each.__module__ == module.__name__ for row in vars(each).get(_HOOKS, ())]
