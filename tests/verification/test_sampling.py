"""The setting, and what it costs where it is not set."""

from __future__ import annotations

import subprocess
import sys

import pytest
from conftest import SOURCE, WARM
from scenes import model_scenes

from safecache.errors import ConfigError
from safecache.settings import config


@pytest.mark.parametrize("text", ["-0.1", "1.1", "nan", "inf", "yes", "1%"])
def test_share_that_is_none_is_an_error_that_names_the_setting(text):
    with pytest.raises(ConfigError, match=r"SAFECACHE_VERIFY='.*' is not allowed: use a number from 0 to 1"):
        config.load({"SAFECACHE_VERIFY": text})


@pytest.mark.parametrize(("text", "share"), [("", 0), ("0", 0), ("0.01", 0.01), ("1", 1), ("1e-3", 0.001)])
def test_share(text, share):
    assert config.load({"SAFECACHE_VERIFY": text}).verify == share


def test_backward_graph_that_is_looked_up_by_itself_is_told_as_not_verified(warm):
    """As where the entry of both is gone, or was refused: AOTAutograd then compiles the backward graph when it first runs."""
    for entry in warm.aot_entries:
        entry.unlink()
    answer = warm.run(model_scenes.compile_model, env={"SAFECACHE_VERIFY": "1"})
    assert answer.ok and answer.hits == (0, 2) and answer.stats["not compiled again"] == 1, answer
    assert len(answer.warnings) == 1 and "it was looked up by itself" in answer.warnings[0], answer
    answer = warm.run(model_scenes.compile_model, env={"SAFECACHE_VERIFY": "1"})
    assert answer.ok and answer.hits == WARM and "not compiled again" not in answer.stats, answer


def test_backward_graph_outside_of_the_sample_is_not_told(warm):
    for entry in warm.aot_entries:
        entry.unlink()
    answer = warm.run(model_scenes.compile_model, env={"SAFECACHE_VERIFY": "1e-12"})
    assert answer.ok and answer.hits == (0, 2) and not answer.warnings, answer


def test_the_guardian_imports_no_torch():
    """Or it could not fork, nor end what hangs."""
    code = "import sys; from safecache.verification import guardian; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(SOURCE), "SAFECACHE": "0"})
