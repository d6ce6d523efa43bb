"""Activation and removal of the hooks. It imports neither torch nor the hooks: they come with what they patch."""

from __future__ import annotations

import atexit
import itertools
import os
import sys
import threading
import time

from safecache.errors import KeyringError, VerifierError
from safecache.patching import units
from safecache.session import ForkLock
from safecache.settings import config

__all__ = ["activate", "deactivate", "is_active", "list_hooks", "status"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

    from safecache.patching.hook import Hook, HookStatus
    from safecache.patching.patching import Patch

_LOOK_AGAIN_SECONDS = 0.002
_EXIT_SECONDS = 5.0


class _Finder:
    """Finder of target modules: asks the finders behind it, and adds a loader that patches the executed target.

    Not wrapt's post-import hooks. With those, an exception in a hook fails the import and leaves a second import
    unpatched. Their loader also forwards assignments to the loader that it wraps: it recurses when another finder
    assigns to ``exec_module``.
    """

    def __init__(self) -> None:
        self._searching = threading.local()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a target module, with a loader that patches; None for any other module."""
        # A finder ahead of us may have found a target without asking us. Not patched here: importlib holds its global
        # lock while it asks a finder.
        _start_watch()
        if fullname not in _hooks.modules or getattr(self._searching, "name", None) == fullname:
            return None
        # A finder behind us may go through sys.meta_path again, including us.
        self._searching.name = fullname
        try:
            spec = next(self._iter_specs(fullname, path, target), None)
        finally:
            self._searching.name = None
        if spec is not None and hasattr(spec.loader, "exec_module"):
            _hooks.pending.discard(fullname)
            spec.loader = _PatchingLoader(spec.loader)  # type: ignore[assignment]
        return spec

    def _iter_specs(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None) -> Iterator[ModuleSpec]:
        finders = list(sys.meta_path)
        behind = finders[finders.index(self) + 1 :] if self in finders else []
        for finder in behind:
            find_spec = getattr(finder, "find_spec", None)
            spec = None if find_spec is None else find_spec(fullname, path, target)
            if spec is not None:
                yield spec


class _PatchingLoader:
    """Loader that loads a module with ``loader`` and then patches it. The module itself sees ``loader``."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def exec_module(self, module: ModuleType) -> None:
        """Execute ``module`` and patch it. Raises what the execution raises; the patching only raises VerifierError."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        _patch_module(module.__name__, module)


class _Hooks:
    """State of this process's hooks. A forked child keeps it, and so does reset()."""

    def __init__(self) -> None:
        self.lock = ForkLock()
        self.finder: _Finder | None = None
        self.patches: dict[str, list[Patch]] = {}
        # The modules that are patched, each with those of ours that have its hooks; and the units that are left out.
        self.modules: dict[str, list[str]] = {}
        self.disabled: tuple[str, ...] = ()
        self.has_asked_installed = False
        # Target modules that we have not tried to patch since the last activation.
        self.pending: set[str] = set()
        # Target modules that we could not even try to patch, modules of ours that cannot be imported, and why.
        self.broken: dict[str, str] = {}
        self.watcher: threading.Thread | None = None


_hooks = _Hooks()


def activate() -> None:
    """Turn the hooks on, after reading the settings again. Idempotent and thread-safe; does not import torch.

    A target that is already imported is patched now, any other right after its import. Raises ConfigError for a setting
    with a bad value. In strict mode raises KeyringError if there is no key to verify with, and VerifierError if a
    verifying hook cannot be put on. A call that raises turns no hook on; a VerifierError from a target turns all hooks
    off.
    """
    config.name_run()
    settings = config.reload()
    units.check_disabled(settings.disable)
    if settings.strict:
        _check_strictly()
    for start in units.STARTS:
        start(settings)
    with _hooks.lock:
        _hooks.disabled = settings.disable
        _hooks.modules = units.list_modules(settings.disable)
        for patch in itertools.chain.from_iterable(_hooks.patches.values()):
            if patch.hook.function.__module__ not in _hooks.modules.get(patch.hook.module, ()):
                patch.revert()
        if _hooks.finder is None:
            _hooks.finder = _Finder()
        if _hooks.finder not in sys.meta_path:
            # A new list, here and below, because another thread may be iterating over the old one.
            sys.meta_path = [_hooks.finder, *sys.meta_path]
        _hooks.pending.update(_hooks.modules)
    try:
        _catch_up()
    except VerifierError:
        deactivate()
        raise
    _start_watch()


def _check_strictly() -> None:
    """Raise KeyringError or VerifierError if it is clear before the import of torch that nothing can be verified."""
    from safecache.patching import patching
    from safecache.signing import keyring, provenance

    objection = keyring.current(tell=False).find_objection()
    if objection:
        raise KeyringError(f"safecache: nothing can be verified, and SAFECACHE_STRICT is set: {objection}.")
    if provenance.torch_version():
        try:
            patching.check_version()
        except patching.StandDownError as error:
            raise VerifierError(
                f"safecache: no hook can be put on: {error}. Install a safecache that knows it."
            ) from error


def deactivate() -> None:
    """Turn the hooks off: every patched attribute is again the object it was. Idempotent and thread-safe.

    A hook under a wrapper of somebody else stays there, disabled.
    """
    with _hooks.lock:
        sys.meta_path = [finder for finder in sys.meta_path if finder is not _hooks.finder]
        _hooks.finder = None
        _hooks.pending.clear()
        _hooks.broken.clear()
        for patches in _hooks.patches.values():
            for patch in patches:
                patch.revert()
    config.end_redirection()


def is_active() -> bool:
    """Tell whether the hooks are on."""
    return _hooks.finder is not None


def list_hooks() -> list[tuple[str, Hook]]:
    """Return (name of its unit, hook) for every hook that can be imported, in the table's order. Imports no torch."""
    return [(unit.name, hook) for unit in units.UNITS for module in unit.modules for hook in _import_hooks(module)[0]]


def status() -> list[HookStatus]:
    """Return the state of every hook, in the order of the table. Imports the hooks, but not torch.

    If a module of hooks cannot be imported, its upstream modules are listed in place of its hooks, with the error.
    """
    from safecache.patching.hook import HookState, HookStatus

    found = [
        (unit, targets, *_import_hooks(module)) for unit in units.UNITS for module, targets in unit.modules.items()
    ]
    unknown = HookState.STANDING_DOWN if is_active() else HookState.INACTIVE
    states = []
    with _hooks.lock:
        for unit, targets, hooks, error in found:
            states += [_make_status(unit.name, hook) for hook in hooks]
            if error is not None:
                states += [HookStatus(name, unknown, f"{type(error).__name__}: {error}", unit.name) for name in targets]
    return states


def _make_status(unit: str, hook: Hook) -> HookStatus:
    from safecache.patching.hook import HookState, HookStatus
    from safecache.signing import provenance

    patch = next((patch for patch in _hooks.patches.get(hook.module, ()) if patch.hook is hook), None)
    state, reason = HookState.INACTIVE if hook.module in sys.modules else HookState.NOT_IMPORTED, ""
    # Such a torch may not have the module either, and below: a package that the module needs may be missing.
    if "torch" in sys.modules and hook.is_not_for(provenance.torch_release()):
        state = HookState.NOT_FOR_TORCH
    elif "torch" in sys.modules and hook.module not in sys.modules and _is_missing(hook.needs):
        state, reason = HookState.NOT_FOR_TORCH, f"{hook.needs} is not installed"
    elif unit in _hooks.disabled:
        state, reason = HookState.SWITCHED_OFF, next(each.lost for each in units.UNITS if each.name == unit)
    elif hook.module in _hooks.broken:
        state, reason = HookState.STANDING_DOWN, _hooks.broken[hook.module]
    elif patch is not None:
        state, reason = patch.find_state(), patch.reason
    return HookStatus(hook.name, state, reason, unit)


def _is_missing(package: str) -> bool:
    from importlib.util import find_spec

    return bool(package) and package not in sys.modules and find_spec(package) is None


def _catch_up() -> None:
    """Patch targets imported without our finder: before activation, or by another finder. Raises VerifierError."""
    found = {name: sys.modules.get(name) for name in _hooks.pending.copy() if not _is_initialising(name)}
    _hooks.pending.difference_update(name for name, module in found.items() if module is not None)
    for name, module in found.items():
        if module is not None:
            _patch_module(name, module)


def _patch_module(name: str, module: ModuleType) -> None:
    _hooks.pending.discard(name)
    _hooks.broken.pop(name, None)
    _add_installed()
    try:
        patches = _prepare_patches(name)
        with _hooks.lock:
            if _hooks.finder is not None:
                for patch in patches:
                    patch.apply(module)
    except VerifierError:
        raise
    except Exception as error:
        # No failure of ours, such as a broken wrapt, may fail the host's import.
        _say_broken(name, f"{name} works as in stock torch", error)


def _add_installed() -> None:
    """Add the units of other packages, once torch or another package that is hooked has begun its own import."""
    if _hooks.has_asked_installed:
        return
    _hooks.has_asked_installed = True
    failed = units.add_installed()
    with _hooks.lock:
        known = _hooks.modules
        _hooks.modules = units.list_modules(_hooks.disabled)
        _hooks.pending.update(name for name, ours in _hooks.modules.items() if ours != known.get(name))
    try:
        for name, error in failed.items():
            _say_broken(name, f"the unit {name} stands down", error)
    except VerifierError:
        _hooks.has_asked_installed = False  # or a second import would go on without it
        raise
    _catch_up()


def _prepare_patches(name: str) -> list[Patch]:
    """Return the patches of a module, with everything that they need imported.

    Imports without holding the lock: an import can wait for another thread's import, and that thread for the lock.
    """
    from safecache.patching.patching import Patch

    hooks: list[Hook] = []
    for module in _hooks.modules.get(name, ()):
        found, error = _import_hooks(module)
        hooks += (hook for hook in found if hook.module == name)
        if error is None:
            _hooks.broken.pop(module, None)
        else:
            _say_broken(module, f"the hooks of {module} stand down", error)
    with _hooks.lock:
        patches = _hooks.patches.setdefault(name, [])
        known = [patch.hook for patch in patches]
        patches += [Patch(hook) for hook in hooks if not any(hook is each for each in known)]
        return [patch for patch in patches if any(patch.hook is hook for hook in hooks)]


def _import_hooks(module: str) -> tuple[list[Hook], Exception | None]:
    """Return the hooks of one of safecache's modules, and the error of its import, or None."""
    import importlib

    from safecache.patching.hook import find_hooks

    try:
        importlib.import_module("safecache.integrations")  # plugs in the features
        return find_hooks(importlib.import_module(module)), None
    except Exception as error:
        return [], error


def _say_broken(name: str, what: str, error: Exception) -> None:
    """Log the error once, and record it for status(). Raises VerifierError in strict mode."""
    import logging

    from safecache.reporting import events

    text = f"{type(error).__name__}: {error}"
    if text not in _hooks.broken.values():
        events.log_line(logging.WARNING, f"safecache: {what}: {text}")
    _hooks.broken[name] = text
    if config.current().strict:
        raise VerifierError(f"safecache: {what}, and SAFECACHE_STRICT is set: {text}") from error


def _is_initialising(name: str) -> bool:
    # The check that importlib makes itself before it waits for another thread's import.
    return bool(getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False))


def _is_any_pending() -> bool:
    # Called at every import of any module, where a generator expression would take five times as long.
    return any(map(sys.modules.__contains__, _hooks.pending.copy()))


def _start_watch() -> None:
    """Start a thread that patches the targets whose import is in progress or bypassed us, once they are imported."""
    if _is_any_pending() and (_hooks.watcher is None or not _hooks.watcher.is_alive()):
        # Two threads that activate at once each start their own, which does no harm.
        watcher = threading.Thread(target=_await_imports, name="safecache-activation", daemon=True)
        watcher.start()
        _hooks.watcher = watcher


def _await_imports() -> None:
    # Polls: waiting as an import does could deadlock, or import again what has failed.
    while _is_any_pending():
        try:
            _catch_up()
        except VerifierError as error:
            # No caller could catch it, and the module is already in use.
            print(error, file=sys.stderr, flush=True)
            os._exit(config.EXIT_CONFIG)
        time.sleep(_LOOK_AGAIN_SECONDS)


@atexit.register
def _end_watch() -> None:
    # A daemon thread that loads wrapt's extension module while the interpreter shuts down can crash it.
    _hooks.pending.clear()
    if _hooks.watcher is not None:
        _hooks.watcher.join(_EXIT_SECONDS)
