"""Scenes with Triton's cache, on its sources as they are or patched; see triton_program.py."""

from __future__ import annotations

import atexit
import contextlib
import errno
import glob
import os
import uuid
from pathlib import Path
from unittest import mock

from harness.capabilities import drop_file_capabilities
from scenes.kernel_scenes import build_module, compile_kernel, dump_kernel
from scenes.triton_cache_scenes import compile_twice


def compile_elsewhere(directory):
    os.environ["TRITON_CACHE_DIR"] = directory
    return compile_twice()


def build_twice():
    return [build_module()["compiled"] for _ in range(2)]


def build_elsewhere(directory):
    os.environ["TRITON_CACHE_DIR"] = directory
    return build_twice()


def load_garbage(directory):
    from triton.runtime import build

    path = os.path.join(directory, "probe.so")
    write(GARBAGE)(path)
    build._load_module_from_path("probe", path)


@contextlib.contextmanager
def failing(call, error, *, after=False, times=None):
    """Let a function of os fail for what lies in the cache, before it does its work or after, at first ``times`` times."""
    real, left = getattr(os, call), [times]

    def fail(path, *rest, **named):
        is_meant = str(path).startswith(os.environ["TRITON_CACHE_DIR"]) and left[0] != 0
        if after or not is_meant:
            answer = real(path, *rest, **named)
        if not is_meant:
            return answer
        if left[0] is not None:
            left[0] -= 1
        raise OSError(getattr(errno, error), os.strerror(getattr(errno, error)), str(path))

    with mock.patch.object(os, call, fail):
        yield


def compile_while_failing(call, error, **how):
    with failing(call, error, **how):
        return compile_kernel()


def put_by_two_with_the_same_names():
    """What is read by a writer while another one, in a container where it has the same pid, and with the same random
    number, writes the same file and is killed before it is done.
    """
    from triton.runtime import cache

    number, replace = uuid.uuid4(), os.replace

    def killed(source, target):
        os._exit(0)

    def meanwhile(source, target):
        child = os.fork()
        if child == 0:
            with mock.patch.object(os, "replace", killed):
                cache.FileCacheManager("key").put(b"second" * 9, "file")
            atexit._run_exitfuncs()
            os._exit(0)
        os.waitpid(child, 0)
        replace(source, target)

    with (
        mock.patch.object(uuid, "uuid4", lambda: number),
        mock.patch.object(os, "getpid", lambda: 4242),
        mock.patch.object(os, "replace", meanwhile),
    ):
        return Path(cache.FileCacheManager("key").put(b"first", "file")).read_text()


def dump_below_a_file():
    place = os.path.join(os.environ["TRITON_CACHE_DIR"], "file")
    os.makedirs(os.path.dirname(place))
    Path(place).touch()
    return dump_kernel(os.path.join(place, "dump"))


def put_with_umask(umask):
    """The mode of a file in the cache."""
    from triton.runtime import cache

    os.umask(int(umask, 8))
    return oct(os.stat(cache.FileCacheManager("key").put(b"content", "file")).st_mode & 0o777)


def put_text():
    """What another process reads of a text, a number and bytes, as Triton puts them."""
    from triton.runtime import cache

    manager = cache.FileCacheManager("key")
    return [Path(manager.put(data, "file")).read_text() for data in ("text", 1, b"bytes")]


def put_group():
    from triton.runtime import cache

    manager = cache.FileCacheManager("key")
    return manager.put_group("k.json", {name: manager.put(name, name) for name in ("k.json", "k.cubin")})


def get_group():
    from triton.runtime import cache

    return cache.FileCacheManager("key").get_group("k.json")


def write(content):
    def damage(path):
        with open(path, "wb") as file:
            file.write(content)

    return damage


def cut(path):
    os.truncate(path, os.path.getsize(path) // 2)


def lock_away(path):
    os.chmod(path, 0)


GARBAGE = b"\xff\xfe garbage \x00"
DAMAGES = {
    "no-cubin": ("*.cubin", os.remove),
    "empty-cubin": ("*.cubin", write(b"")),
    "unreadable-cubin": ("*.cubin", lock_away),
    "no-metadata": ("tri*.json", os.remove),
    "cut-metadata": ("tri*.json", cut),
    "empty-metadata": ("tri*.json", write(b"")),
    "garbage-metadata": ("tri*.json", write(GARBAGE)),
    "list-as-metadata": ("tri*.json", write(b"[]")),
    "other-metadata": ("tri*.json", write(b"{}")),
    "unreadable-metadata": ("tri*.json", lock_away),
    "garbage-text": ("*.ttir", write(GARBAGE)),
    "no-text": ("*.ttir", os.remove),
    "no-list": ("__grp__*", os.remove),
    "cut-list": ("__grp__*", cut),
    "garbage-list": ("__grp__*", write(GARBAGE)),
    "list-of-nothing": ("__grp__*", write(b"[]")),
    "list-of-no-paths": ("__grp__*", write(b'{"child_paths": [1]}')),
    "unreadable-list": ("__grp__*", lock_away),
}


def _outcome(good):
    try:
        answer = compile_kernel()
    except Exception as error:
        return type(error).__name__
    return ("compiled" if answer["compiled"] else "hit") + ("" if answer["cubin"] == good else " wrong")


def compile_damaged():
    """By damage: what comes of a compile, and of the one after it, each with a cache of its own."""
    if os.geteuid() == 0:
        drop_file_capabilities()  # else all is readable
    base = os.environ["TRITON_CACHE_DIR"]
    outcomes = {}
    for damage, (pattern, do) in DAMAGES.items():
        os.environ["TRITON_CACHE_DIR"] = os.path.join(base, damage)
        good = compile_kernel()["cubin"]
        (path,) = glob.glob(os.path.join(base, damage, "*", pattern))
        do(path)
        outcomes[damage] = [_outcome(good), _outcome(good)]
    return outcomes
