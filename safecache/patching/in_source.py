"""Hooks that a source patch (patches/) has put on: whether they are on, and what each is; from the first call on.

Only safecache_entry imports this, which the patched sources import.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from safecache.errors import ConfigError, VerifierError
from safecache.patching import activation, patching, targets
from safecache.settings import config
from safecache.tiers import directory_faults, fallback

__all__ = ["hook_function", "is_on", "reset"]

_found: dict[str, Callable[..., Any]] = {}
_said: set[str] = set()


def is_on() -> bool:
    """As activate() or deactivate() was called last, or else the settings say; not while one has a bad value."""
    try:
        return activation.are_source_hooks_on()
    except ConfigError as error:
        _say(f"the hooks in the source are not on in this process: {error}")
        return False


def hook_function(name: str) -> Callable[..., Any]:
    """The hook ``module:function`` below safecache.hooks; if it cannot be imported, what passes the call on, said once.

    Raises VerifierError in strict mode, of a hook that verifies.
    """
    if name not in _found:
        try:
            _found[name] = patching.hook_function(name)
        except Exception as error:
            text = f"{name} is as in stock torch: {type(error).__name__}: {error}"
            if config.current().strict and name in targets.VERIFYING:
                raise VerifierError(f"safecache: {text}") from error
            _say(text)
            return _as_in_stock
    return _found[name]


def _as_in_stock(wrapped: Any, *call: Any, **_: Any) -> Any:
    """Both a hook on a function, called with instance, args and kwargs, and one on the module ``pickle``."""
    if not call:
        return wrapped
    args, kwargs = call[1:]
    return wrapped(*args, **kwargs)


def _say(text: str) -> None:
    if text not in _said:
        _said.add(text)
        print(f"safecache: {text}", file=sys.stderr)


def reset() -> None:
    """Say again what was said once."""
    _said.clear()


if config.is_one():
    directory_faults.leave_to_parent()
    fallback.leave_to_parent()
