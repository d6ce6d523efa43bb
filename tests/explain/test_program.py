"""A program in processes of its own: what one of them has compiled explains what another, with another setting, did not find."""

from __future__ import annotations

import pytest
from conftest import isolated_environment, python

from safecache.cli.main import main

PROGRAM = """
import safecache
import torch

def product(x, w):
    return (x @ w) @ w

torch.compile(product)(torch.ones(8, 8), torch.ones(8, 8))
"""


@pytest.mark.default_release
def test_variable_that_sets_a_setting_is_named_beside_it(tmp_path, capsys):
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    run = f"import runpy; runpy.run_path({str(path)!r}, run_name='__main__')"
    environment = isolated_environment(tmp_path) | {"SAFECACHE_EXPLAIN": "1"}
    first = python(run, env=environment)
    second = python(run, env=environment | {"TORCHINDUCTOR_COMPREHENSIVE_PADDING": "0"})
    assert "AOTAutograd entry of train.product: nothing was ever saved" in first.stderr, first.stderr
    [line] = [line for line in second.stderr.splitlines() if "AOTAutograd" in line]
    said = "env TORCHINDUCTOR_COMPREHENSIVE_PADDING: none → 0; inductor config comprehensive_padding: True → False"
    assert f"AOTAutograd entry of train.product: {said} (against" in line
    assert main(["explain", "--dir", str(tmp_path / "cache"), "train.product forward"]) == 0
    assert said in capsys.readouterr().out
