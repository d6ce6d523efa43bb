"""Managers of Triton's cache as users have them, one that is no more than Triton's own hook, and a remote cache."""

from __future__ import annotations

import os
from typing import ClassVar

from triton import knobs
from triton.runtime.cache import FileCacheManager, RemoteCacheBackend


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


class RemoteBackend(RemoteCacheBackend):
    """A remote cache that all of a process share; what it delivers is what it was given, or ``evil``."""

    contents: ClassVar = {}
    evil = None

    def __init__(self, key):
        self.key = key

    def get(self, filenames):
        found = {name: self.contents[self.key, name] for name in filenames if (self.key, name) in self.contents}
        return {name: self.evil if self.evil and name.endswith(".cubin") else data for name, data in found.items()}

    def put(self, filename, data):
        self.contents[self.key, filename] = data


class BackendRaises(RemoteCacheBackend):
    """A remote cache that is out of order."""

    def get(self, filenames):
        raise RuntimeError("out of order")

    def put(self, filename, data):
        raise RuntimeError("out of order")


class BackendNonsense(RemoteCacheBackend):
    """A remote cache that answers with other things than files."""

    def get(self, filenames):
        return 7

    def put(self, filename, data):
        raise OSError("no room")
