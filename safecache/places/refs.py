"""Refs: names, by kind, cache key and cache, of what is looked up, stored, sent and reported."""

from __future__ import annotations

import hashlib
import os
import re
from typing import NamedTuple

from safecache.fs import folders
from safecache.places import layout
from safecache.places.layout import CodeFile
from safecache.reporting.kinds import Kind, Travel
from safecache.settings import config

__all__ = ["ARTIFACT", "TRITON_FOLDERS", "Ref", "digest", "locate", "name_artifact"]

# Where Triton's cache may lie in Inductor's: torch has one for each device.
TRITON_FOLDERS = re.compile(r"triton/\d{1,4}|")
# The name of what has no place in a cache.
ARTIFACT = re.compile(r"artifact/([0-9a-f]{32})/([0-9a-f]{32})")


class Ref(NamedTuple):
    """Cache key of one kind in the cache directory ``root``, which has its records too; "" if it is in no cache.

    If the kind's files travel one by one, a ref names one file, with torch's marker beside it; else a directory of
    files.
    """

    kind: Kind
    key: str = ""
    root: str = ""

    @property
    def path(self) -> str:
        """Path of the directory, or of the file."""
        safe_key = re.sub(r'[<>:"/\\|?*]', "_", self.key)  # as code_state_path in torch's pgo.py
        place = self.kind.tiers.place.format(key=self.key, shard=self.key[1:3], safe_key=safe_key)
        return os.path.join(self.root, place)

    @property
    def title(self) -> str:
        """Name for messages: the kind, and the beginning of the key."""
        return f"{self.kind.noun} {self.key[:16]}…"

    @property
    def directory(self) -> str:
        """Path of the directory that contains the ref's files."""
        return os.path.dirname(self.path) if self.is_file else self.path

    @property
    def is_file(self) -> bool:
        """Tell whether the ref names one file."""
        return self.kind.tiers.travel is not Travel.GROUPS

    @property
    def has_valid_key(self) -> bool:
        """Tell whether the key may be one of this kind: no path that is made of it leads out of its cache."""
        return bool(self.kind.tiers.key) and re.fullmatch(self.kind.tiers.key, self.key) is not None

    @property
    def triton_folder(self) -> str:
        """Folder of a kernel's Triton cache in Inductor's, such as triton/0; "" for other kinds and places."""
        within = config.split_cache_path(self.root)[1] if self.kind is Kind.KERNEL else ""
        return within if TRITON_FOLDERS.fullmatch(within) else ""

    def name_file(self, name: str) -> CodeFile:
        """Return the ref's file of this name."""
        return CodeFile(os.path.join(self.directory, name), self.root, self.kind)

    def can_own(self, name: str) -> bool:
        """Tell whether a file of this name may belong to the ref."""
        if self.is_file:
            own = os.path.basename(self.path)
            return name in (own, own + layout.LOADED)
        if self.kind is Kind.TABLE:
            return name == layout.VLLM_TABLE or layout.VLLM_ARTIFACT.fullmatch(name) is not None
        is_plain = os.path.basename(name) == name and not name.startswith(".") and "\0" not in name
        return bool(name) and is_plain and not layout.is_temporary(name)

    def list_names(self) -> list[str]:
        """Return the names of the ref's files, sorted; of one file, whether it exists or not. Raises OSError."""
        if self.is_file:
            own = os.path.basename(self.path)
            return [own, own + layout.LOADED]
        return sorted(filter(self.can_own, folders.list_directory(self.directory)))


def locate(kind: Kind, path: str, root: str) -> Ref:
    """Return the ref of the file or directory at ``path``, of a kind whose keys are paths below ``root``."""
    return Ref(kind, os.path.relpath(path, root), root)


def digest(*parts: str) -> str:
    """Return a digest (32 hex digits) of ``parts``: the word of a kind and a key, and for a file its name."""
    return hashlib.sha256("\0".join(parts).encode(errors="surrogateescape")).hexdigest()[:32]


def name_artifact(key: str, which: str) -> str:
    """Return the name of an artifact: ``key`` stays the same when it is recompiled, and ``which`` does not."""
    return f"artifact/{digest(key)}/{digest(key, which)}"
