"""Turns the hooks on and off. Activating imports neither torch nor the hooks: they come with what they patch."""

from __future__ import annotations

import importlib
import os
import sys
import threading

from safecache import config
from safecache.targets import MODULES, TARGETS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

    from safecache.patching import HookStatus, Patch

__all__ = ["activate", "deactivate", "is_active", "status"]


class _Finder:
    """Finds the target modules as the finders behind it do, and has them patched right after they are executed.

    Not wrapt's post-import hooks: those let an exception of a hook fail the import and leave a second import
    unpatched, and replace the loader by a proxy that other finders' assignments to ``exec_module`` recurse in.
    """

    def __init__(self) -> None:
        self._searching = threading.local()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a target module, with its loader's ``exec_module`` extended; None for any other module."""
        if fullname not in MODULES or getattr(self._searching, "name", None) == fullname:
            return None
        # Another finder may ask the whole of sys.meta_path again, us included.
        self._searching.name = fullname
        try:
            spec = next(self._specs(fullname, path, target), None)
        finally:
            self._searching.name = None
        if spec is not None and hasattr(spec.loader, "exec_module"):
            _extend(spec.loader)
        return spec

    def _specs(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None) -> Iterator[ModuleSpec]:
        for finder in list(sys.meta_path):
            find_spec = getattr(finder, "find_spec", None)
            if finder is not self and find_spec is not None:
                spec = find_spec(fullname, path, target)
                if spec is not None:
                    yield spec


def _extend(loader: Any) -> None:
    """Patch what ``loader`` executes. On the instance, as other finders do it, so that both extensions run."""
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        _patch_module(module.__name__, module)

    loader.exec_module = exec_module


_lock = threading.RLock()
_finder: _Finder | None = None
_patches: dict[str, list[Patch]] = {}


def _renew_lock() -> None:
    # Another thread of the parent may hold the lock at the moment of the fork; the child has no such thread.
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


def activate() -> None:
    """Turn the hooks on, reading the settings anew. Idempotent and thread-safe; imports nothing of torch.

    A target that is already imported is patched now, any other right after its import. Raises ConfigError for a
    setting with a bad value.
    """
    global _finder
    config.reload()
    unfinished = []
    with _lock:
        if _finder is None:
            _finder = _Finder()
        if _finder not in sys.meta_path:
            sys.meta_path.insert(0, _finder)
        for name in sorted(MODULES & sys.modules.keys()):
            module = sys.modules[name]
            if _is_initialising(module):
                unfinished.append(name)
            else:
                _patch_module(name, module)
    # Outside our lock: the thread that imports the module may need it before the module is finished.
    for name in unfinished:
        _await_import(name)


def deactivate() -> None:
    """Turn the hooks off: every patched attribute is again the object it was. Idempotent and thread-safe."""
    global _finder
    with _lock:
        if _finder in sys.meta_path:
            sys.meta_path.remove(_finder)
        _finder = None
        for patches in _patches.values():
            for patch in patches:
                patch.revert()


def is_active() -> bool:
    """Whether the hooks are on."""
    return _finder is not None


def status() -> list[HookStatus]:
    """The state of every hook in the table, in its order."""
    from safecache.patching import HookStatus

    states = []
    with _lock:
        for target in TARGETS:
            patch = next((p for p in _patches.get(target.module, ()) if p.target is target), None)
            if patch is not None:
                states.append(HookStatus(target.name, patch.state(), patch.reason))
            else:
                imported = target.module in sys.modules
                states.append(HookStatus(target.name, "inactive" if imported else "not yet imported", ""))
    return states


def _patch_module(name: str, module: ModuleType) -> None:
    with _lock:
        if _finder is None:
            return
        try:
            _patches_of(name, module)
        except Exception as error:
            # The host's import must not fail for our sake, whatever it was: a broken wrapt, say.
            _say_broken(name, error)


def _patches_of(name: str, module: ModuleType) -> None:
    from safecache.patching import Patch

    if name not in _patches:
        _patches[name] = [Patch(target) for target in TARGETS if target.module == name]
    for patch in _patches[name]:
        patch.apply(module)


def _say_broken(name: str, error: Exception) -> None:
    import logging

    logging.getLogger("safecache").warning(
        "safecache: %s is not hardened: %s: %s. It works as in stock torch.", name, type(error).__name__, error
    )


def _is_initialising(module: ModuleType) -> bool:
    # As importlib itself asks before it waits for another thread's import.
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def _await_import(name: str) -> None:
    """Patch ``name`` once the import that is under way is finished: by waiting, or if this thread is the one, later."""
    _finish(name)
    module = sys.modules.get(name)
    if module is not None and _is_initialising(module):
        threading.Thread(target=_finish, args=(name,), name="safecache-activation", daemon=True).start()


def _finish(name: str) -> None:
    try:
        module = importlib.import_module(name)
    except Exception as error:
        _say_broken(name, error)
        return
    if not _is_initialising(module):
        _patch_module(name, module)
