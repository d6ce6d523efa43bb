"""Make launchers of Triton kernels picklable, and rebuild them on load.

Inductor makes a launcher with exec, in a namespace where nothing can look it up, and pickle knows plain functions by
name only: one reference to a launcher made a whole entry unsaveable (pytorch issues 180911, 181869).
"""

from __future__ import annotations

import functools
import io
import pickle
import types
from collections.abc import Callable
from typing import Any

from safecache.launchers import kernel_recipe
from safecache.launchers.kernel_recipe import Recipe
from safecache.session import ForkLock

__all__ = ["Launcher", "dumps", "make", "revive", "share_recipe"]

_RECIPE = "_safecache_recipe"
# What leads to handles of this process; a launcher that is rebuilt gets its own.
_PROCESS_LOCAL = frozenset({_RECIPE, "fn", "bin", "_static_kernel_owner"})


class Launcher(functools.partial[Any]):
    """Launcher of a Triton kernel that pickle and cloudpickle save, with what it is rebuilt from; a copy is itself.

    A functools.partial without arguments, since that is called without a Python frame in between: a ``__call__`` of our
    own makes a launch 8 to 14 % slower (H200). It shares the function's ``__dict__``, so that attributes torch sets on
    either are on both.

    After unpickling it loads its kernel at the first call, or when ``fn`` or ``bin`` is read. That raises LauncherError
    if it fails for a known reason. Its other attributes are available before.
    """

    def __new__(cls, function: Callable[..., Any], attributes: dict[str, Any]) -> Launcher:
        self = super().__new__(cls, function)
        self.__setstate__((function, (), {}, attributes))
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _reduce_launcher(self)

    def __copy__(self) -> Launcher:
        return self  # As copy does with a function.

    def __deepcopy__(self, memo: dict[int, Any]) -> Launcher:
        return self

    def __repr__(self) -> str:
        return f"<launcher {self.__qualname__}>"

    def __getattr__(self, name: str) -> Any:
        if name in ("fn", "bin") and vars(self).get("store_cubin") and isinstance(self.func, _Unloaded):
            self.load()
            return getattr(self, name)
        raise AttributeError(f"a launcher has no attribute {name!r}")

    @property
    def __globals__(self) -> dict[str, Any]:
        # Torch reads them to close or rewrap the loaded kernel.
        return getattr(self.func, "__globals__", {})

    @property
    def __code__(self) -> types.CodeType:
        code: types.CodeType = self.func.__code__
        return code

    def load(self) -> Callable[..., Any]:
        """Return the function, loaded if necessary. Raises as kernel_recipe.rebuild() does."""
        with _loading:
            if isinstance(self.func, _Unloaded):
                function = kernel_recipe.rebuild(self.func.recipe)
                vars(function).update(vars(self))
                self.__setstate__((function, (), {}, vars(function)))
            return self.func


class _Unloaded:
    """Takes the place of an unpickled launcher's function until its first call."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.launcher: Launcher | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        assert self.launcher is not None
        return self.launcher.load()(*args, **kwargs)


# One for all launchers: a lock of its own would make a launcher unpicklable for other picklers.
_loading = ForkLock()


def make(function: types.FunctionType, result: Any) -> Launcher:
    """Return the Launcher for a ``function`` that ``result``, Inductor's CompileResult, has just made."""
    attributes = vars(function)
    attributes["__module__"] = __name__
    attributes["__name__"] = result.kernel.name
    attributes["__qualname__"] = kernel_recipe.identify(result, attributes["cache_hash"])
    attributes[_RECIPE] = functools.partial(kernel_recipe.freeze, result)
    return Launcher(function, attributes)


def revive(recipe: Recipe, attributes: dict[str, Any]) -> Launcher:
    """The Launcher that a pickle is rebuilt as; it loads nothing yet."""
    function = _Unloaded(recipe)
    function.launcher = Launcher(function, {**attributes, _RECIPE: lambda: recipe})
    return function.launcher


def share_recipe(launcher: Launcher, function: types.FunctionType) -> None:
    """Let dumps() save ``function``, which launches the same kernel, with the recipe of ``launcher``."""
    for name in (_RECIPE, "__module__", "__name__", "__qualname__"):
        vars(function)[name] = vars(launcher)[name]


def dumps(obj: object) -> bytes:
    """Return the pickle of ``obj``; functions underlying launchers, which torch keeps, are saved as the launchers."""
    buffer = io.BytesIO()
    _FunctionPickler(buffer).dump(obj)
    return buffer.getvalue()


class _FunctionPickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, types.FunctionType) and _RECIPE in vars(obj):
            return _reduce_launcher(obj)
        return NotImplemented


def _reduce_launcher(launcher: Any) -> tuple[Any, ...]:
    attributes = vars(launcher)
    portable = {name: value for name, value in attributes.items() if name not in _PROCESS_LOCAL}
    return revive, (attributes[_RECIPE](), portable)
