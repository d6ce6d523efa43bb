"""Scenes with Triton's cache, on its sources as they are or patched; see triton_program.py."""

from __future__ import annotations

import os

from scenes.kernel_scenes import build_module


def build_twice():
    return [build_module()["compiled"] for _ in range(2)]


def build_elsewhere(directory):
    os.environ["TRITON_CACHE_DIR"] = directory
    return build_twice()


def load_garbage(directory):
    from triton.runtime import build

    path = os.path.join(directory, "probe.so")
    with open(path, "wb") as file:
        file.write(b"\xff\xfe garbage \x00")
    build._load_module_from_path("probe", path)
