"""Starts the workload in processes of their own, on caches of their own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from safecache.settings import config

__all__ = ["ENTRY_FOLDERS", "Cache", "Outcome", "environment_with_safecache", "places"]

_SCRIPT = Path(__file__).with_name("transformer.py")
_PACKAGE_PARENT = Path(__file__).parents[3]
_LIMIT_SECONDS = 900
ENTRY_FOLDERS = ("aotautograd", "fxgraph")


def environment_with_safecache() -> dict[str, str]:
    """An environment for a child that can import safecache, with every setting at its default."""
    environment = config.child_environment()
    for variable in config.VARIABLES:
        environment.pop(variable, None)
    entries = [environment.get("PYTHONPATH", ""), str(_PACKAGE_PARENT)]
    return environment | {"PYTHONPATH": os.pathsep.join(filter(None, entries))}


def places(base: Path) -> dict[str, str]:
    """The variables that keep a process's caches and keys below ``base``, and its temporary files beside it.

    Torch keeps precompiled headers among those, which would otherwise be left behind for each signing key made here.
    """
    folders = {"TORCHINDUCTOR_CACHE_DIR": "cache", "TRITON_CACHE_DIR": "triton", "XDG_CONFIG_HOME": "config"}
    return {name: str(base / folder) for name, folder in folders.items()} | {"TMPDIR": str(base.parent)}


class Outcome(NamedTuple):
    """What a process printed, on stdout and on stderr."""

    answer: dict[str, Any]
    stderr: str

    @property
    def error(self) -> str | None:
        """Why the work failed; None if it was done."""
        error: str | None = self.answer.get("error")
        return error

    @property
    def hit(self) -> bool:
        """Whether nothing was compiled."""
        return bool(self.answer.get("aot_hits")) and bool(self.answer.get("fx_hits"))


class Cache:
    """A cache directory with the keys that belong to it, used by stock torch or by safecache with these settings."""

    def __init__(self, base: Path, *, stock: bool, settings: Mapping[str, str] | None = None) -> None:
        self.base = base
        self.stock = stock
        self.settings = settings or {}
        self.directory = base / "cache"

    def run(self, *options: str) -> Outcome:
        """Do the work once, in a fresh process."""
        environment = environment_with_safecache() | places(self.base) | dict(self.settings)
        command = [sys.executable, str(_SCRIPT), *(["--stock"] if self.stock else []), *options]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_LIMIT_SECONDS)
        lines = done.stdout.strip().splitlines()
        if not lines:
            return Outcome({"error": f"the process died with status {done.returncode}"}, done.stderr)
        return Outcome(json.loads(lines[-1]), done.stderr)

    def copy(self, base: Path) -> Cache:
        """The same cache and keys in another place."""
        shutil.copytree(self.base, base, symlinks=True)
        return Cache(base, stock=self.stock, settings=self.settings)

    def entries(self, folder: str) -> list[Path]:
        """The entries below ``aotautograd`` or ``fxgraph``."""
        found = (self.directory / folder).rglob("*")
        return sorted(path for path in found if path.is_file() and not path.name.startswith("."))
