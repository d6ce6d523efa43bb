"""Pytest's own process imports the scenes that tests pass, and neither torch nor Triton for them."""

from __future__ import annotations

from conftest import TESTS, python

IMPORT = """
import importlib, sys
sys.modules.update(torch=None, triton=None)
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


def test_modules_of_scenes_are_imported_without_torch_and_triton():
    names = [".".join(path.relative_to(TESTS).with_suffix("").parts) for path in TESTS.rglob("*_scenes.py")]
    done = python(IMPORT, path=TESTS, arguments=tuple(names))
    assert len(names) > 15 and done.returncode == 0, done.stderr
