"""Scenes with managers of Triton's cache as users have them, and with one that is no more than Triton's own hook."""

from __future__ import annotations

import os
import pkgutil

from scenes.kernel_scenes import compile_kernel, exchanging


def compile_with_manager(manager, what=None):
    os.environ["TRITON_CACHE_MANAGER"] = f"scenes.triton_managers:{manager}"
    return (pkgutil.resolve_name(what) if what else compile_kernel)()


def compile_with_manager_under_attack(manager, evil):
    with exchanging(evil):
        return compile_with_manager(manager)


def _by_scope(key):
    from triton import knobs
    from triton.runtime import cache

    from scenes.triton_managers import Refusing

    knobs.cache.manager_class = None
    with knobs.cache.scope():
        knobs.cache.manager_class = Refusing
    return cache.get_cache_manager(key)


def _by_assignment(value):
    from triton import knobs
    from triton.runtime import cache

    knobs.cache.manager_class = value
    return cache.get_cache_manager


def found_where_the_hook_is_set(how):
    """Whether a planted file is found in spite of ``knobs.cache.manager_class``, and which manager was asked."""
    from triton import knobs
    from triton.runtime import cache
    from triton.runtime.cache import FileCacheManager

    from scenes.triton_managers import OwnDirectory, Refusing

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
    from triton import knobs
    from triton.runtime import cache

    from scenes.triton_managers import Refusing

    knobs.cache.manager_class = Refusing
    os.environ["TRITON_CACHE_MANAGER"] = "scenes.triton_managers:OwnWriter"
    return type(cache.get_cache_manager("ab" * 32)).__name__


def upstream_hooks(names):
    """What each of those that the table names is by default."""

    return {name: pkgutil.resolve_name(name) for name in names}
