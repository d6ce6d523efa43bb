"""The copy that the tests of the patches run on."""

from __future__ import annotations

import os

from patches.conftest import installed


def test_process_imports_the_copy(patched, tmp_path):
    code = "import json, sys, torch; print(json.dumps([torch.__file__, 'safecache' in sys.modules]))"
    site = patched()
    assert site.said(code, tmp_path) == [str(site.path / "torch" / "__init__.py"), False]


def test_copy_is_pristine(patched):
    """Or a test that is red on it proves nothing."""
    path = os.path.join("torch", "_inductor", "codecache.py")
    assert (patched().path / path).read_bytes() == (installed("torch").parent / path).read_bytes()
