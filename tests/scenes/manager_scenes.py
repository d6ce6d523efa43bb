"""Scenes with managers of Triton's cache as users have them, and with one that is no more than Triton's own hook."""

from __future__ import annotations

import os
import pkgutil

from triton import knobs
from triton.runtime import cache
from triton.runtime.cache import FileCacheManager

from scenes.kernel_scenes import build_module, compile_kernel, exchanging


class OwnDirectory(FileCacheManager):
    """Has an __init__ of its own, as those of SGLang, Megatron and triton-dejavu had."""

    def __init__(self, key, override=False, dump=False):
        self.key = key
        base = knobs.cache.dump_dir if dump else knobs.cache.override_dir if override else knobs.cache.dir
        self.cache_dir = os.path.join(base, key)
        self.lock_path = os.path.join(self.cache_dir, "lock")
        os.makedirs(self.cache_dir, exist_ok=True)


class OwnWriter(FileCacheManager):
    """Has a put() of its own, as Liger's."""

    def put(self, data, filename, binary=True):
        path = self._make_path(filename)
        with open(f"{path}.{os.getpid()}", "wb" if isinstance(data, bytes) else "w") as file:
            file.write(data if isinstance(data, bytes) else str(data))
        os.replace(f"{path}.{os.getpid()}", path)
        return path


class OwnBoth(OwnWriter, OwnDirectory):
    """Has both."""


class Telling(FileCacheManager):
    """Has a put() that does something else besides."""

    told = 0

    def put(self, data, filename, binary=True):
        Telling.told += 1
        return super().put(data, filename, binary=binary)


class Refusing(FileCacheManager):
    """Takes nothing from the cache at all: as careful as a manager can be."""

    def get_file(self, filename):
        return None

    def get_group(self, filename):
        return None


def compile_with_manager(manager, what="compile_kernel"):
    os.environ["TRITON_CACHE_MANAGER"] = f"{__name__}:{manager}"
    return {"compile_kernel": compile_kernel, "build_module": build_module}[what]()


def compile_with_manager_under_attack(manager, evil):
    with exchanging(evil):
        return compile_with_manager(manager)


def _by_scope(key):
    knobs.cache.manager_class = None
    with knobs.cache.scope():
        knobs.cache.manager_class = Refusing
    return cache.get_cache_manager(key)


def _by_assignment(value):
    knobs.cache.manager_class = value
    return cache.get_cache_manager


def found_where_the_hook_is_set(how):
    """Whether a planted file is found in spite of ``knobs.cache.manager_class``, and which manager was asked."""
    key = "ab" * 32
    planted = os.path.join(knobs.cache.dir, cache._base32(key), "planted.cubin")
    os.makedirs(os.path.dirname(planted))
    with open(planted, "wb") as file:
        file.write(b"evil")
    knobs.cache.manager_class = Refusing
    manager = {
        "as it is": lambda: cache.get_cache_manager(key),
        "made directly": lambda: FileCacheManager(cache._base32(key)),
        "a user's": lambda: _by_assignment(OwnDirectory)(key),
        "none": lambda: _by_assignment(None)(key),
        "reset": lambda: knobs.cache.reset() and cache.get_cache_manager(key),
        "end of a scope": lambda: _by_scope(key),
    }[how]()
    return {"found": manager.get_file("planted.cubin") is not None, "manager": type(manager).__name__}


def manager_that_the_environment_names():
    """Once the hook is set, by us: Triton prefers what was assigned."""
    knobs.cache.manager_class = Refusing
    os.environ["TRITON_CACHE_MANAGER"] = f"{__name__}:OwnWriter"
    return type(cache.get_cache_manager("ab" * 32)).__name__


def upstream_hooks():
    """What each of those that the table names is by default."""
    from safecache.patching.targets import UPSTREAM_HOOKS

    return {hook: pkgutil.resolve_name(name) for hook, (name, _) in UPSTREAM_HOOKS.items()}
