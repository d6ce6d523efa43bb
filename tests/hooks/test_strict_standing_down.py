"""In strict mode a process does not start to work with a verifier that is not on: the error names it."""

from __future__ import annotations

import sys

import pytest

from .conftest import FAKE_TORCH

SAVE_GRAPH = "torch._inductor.codecache.FxGraphCache._save_graph"
# A hook that counts and explains, and verifies nothing.
PREPARE_KEY = "torch._inductor.codecache.FxGraphCache.prepare_key"


@pytest.mark.parametrize("signature", ["unknown", "missing"])
def test_import_of_a_module_whose_verifier_stands_down_fails(fake, signature):
    fake(
        f"""
        import safecache
        from safecache.errors import VerifierError
        for _ in range(2):
            try:
                importlib.import_module(CODECACHE)
            except VerifierError as error:
                assert {SAVE_GRAPH!r} in str(error) and "SAFECACHE_STRICT=0" in str(error), error
            else:
                raise AssertionError("torch would have gone on without it")
            assert CODECACHE not in sys.modules
        """,
        loud=True,
        FAKE_TORCH_SIGNATURE=signature,
        SAFECACHE_STRICT="1",
    )


@pytest.mark.parametrize("signature", ["unknown", "missing"])
def test_activation_after_the_import_fails_and_leaves_nothing_on(fake, signature):
    fake(
        f"""
        import_all()
        before = snapshot()
        try:
            import safecache
        except Exception as error:
            assert type(error).__name__ == "VerifierError" and {SAVE_GRAPH!r} in str(error), error
        else:
            raise AssertionError("activated")
        assert differences(before, snapshot()) == []
        """,
        loud=True,
        FAKE_TORCH_SIGNATURE=signature,
        SAFECACHE_STRICT="1",
    )


def test_module_that_another_finder_imports_ends_the_process(fake_environment):
    from conftest import python

    done = python(
        """
import importlib, sys, time
from importlib.machinery import PathFinder
import safecache
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return PathFinder.find_spec(name, path, target) if name.endswith(".codecache") else None
sys.meta_path.insert(0, Finder)
importlib.import_module("torch._inductor.codecache")
import colorsys
time.sleep(30)
print("went on")
""",
        path=FAKE_TORCH,
        env=fake_environment | {"FAKE_TORCH_SIGNATURE": "unknown", "SAFECACHE_STRICT": "1"},
    )
    assert done.returncode == 78 and SAVE_GRAPH in done.stderr and "went on" not in done.stdout, done


def test_hook_that_verifies_nothing_may_stand_down(fake):
    said = fake(
        f"""
        import torch._inductor.codecache as module
        module.FxGraphCache.prepare_key = lambda changed: None
        import safecache
        import_all()
        assert list(reasons()) == [{PREPARE_KEY!r}], reasons()
        """,
        loud=True,
        SAFECACHE_STRICT="1",
    )
    assert len(said.warnings) == 1


def test_torch_that_is_not_known_is_refused_before_anything_compiles(fake):
    fake(
        """
        import torch
        try:
            import safecache
        except Exception as error:
            assert type(error).__name__ == "VerifierError" and "3.0.0" in str(error), error
        else:
            raise AssertionError("activated")
        import_all()
        """,
        FAKE_TORCH_VERSION="3.0.0",
        SAFECACHE_STRICT="1",
    )


@pytest.mark.parametrize("error", ["ImportError", "RuntimeError"])
def test_wrapt_that_cannot_be_imported_is_no_reason_to_go_on(fake, tmp_path, error):
    (tmp_path / "wrapt.py").write_text(f"raise {error}('broken')")
    fake(
        f"""
        sys.path.insert(0, {str(tmp_path)!r})
        try:
            import safecache
            import_all()
        except Exception as error:
            assert "broken" in repr(error) + repr(error.__cause__), error
        else:
            raise AssertionError("went on")
        """,
        loud=True,
        SAFECACHE_STRICT="1",
    )


def test_process_that_can_verify_nothing_does_not_start(fake, tmp_path):
    (tmp_path / "broken").write_text("not a directory")
    fake(
        """
        try:
            import safecache
        except Exception as error:
            assert type(error).__name__ == "KeyringError" and "broken" in str(error), error
        else:
            raise AssertionError("activated")
        """,
        SAFECACHE_KEYRING=str(tmp_path / "broken"),
        SAFECACHE_STRICT="1",
    )


def test_command_that_is_run_strictly_does_not_start(fake_environment, tmp_path):
    import subprocess

    (tmp_path / "broken").write_text("not a directory")
    environment = fake_environment | {"SAFECACHE_KEYRING": str(tmp_path / "broken"), "SAFECACHE_STRICT": "1"}
    command = [sys.executable, "-m", "safecache", "run", "--", sys.executable, "-c", "print('went on')"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 78 and "went on" not in done.stdout and "broken" in done.stderr, done
