"""The copies that the tests of the patches run on."""

from __future__ import annotations

import os

from patches import saving_scenes
from patches.conftest import MADE_BY_HAND, installed


def test_processes_import_the_copies(patched, home, stock):
    for names, process in ((MADE_BY_HAND, home), ((), stock)):
        answer = process.run(saving_scenes.place_of_torch)
        assert answer.result == str(patched(*names).path / "torch" / "__init__.py"), answer


def test_copy_is_pristine(patched):
    """Or a test that is red on it proves nothing."""
    path = os.path.join("torch", "_inductor", "codecache.py")
    assert (patched().path / path).read_bytes() == (installed("torch").parent / path).read_bytes()
