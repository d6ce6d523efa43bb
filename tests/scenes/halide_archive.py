"""Libraries to be linked, as Halide leaves them."""

from __future__ import annotations

import os
import subprocess
import tempfile


def make(path: str, code: str) -> None:
    """A static library of this C++ code at ``path``."""
    with tempfile.TemporaryDirectory() as directory:
        built = os.path.join(directory, "code.o")
        make_object(built, code)
        if os.path.exists(path):
            os.unlink(path)
        subprocess.run(["ar", "rcs", path, built], check=True)


def make_object(path: str, code: str) -> None:
    """An object at ``path``, of which a linker takes all, also what nobody asks for."""
    subprocess.run(["g++", "-xc++", "-", "-c", "-fPIC", "-o", path], input=code, text=True, check=True)
