"""The setting, and what it costs where it is not set."""

from __future__ import annotations

import subprocess
import sys

import pytest
from conftest import SOURCE

from safecache.errors import ConfigError
from safecache.settings import config


@pytest.mark.parametrize("text", ["-0.1", "1.1", "nan", "inf", "yes", "1%"])
def test_share_that_is_none_is_an_error_that_names_the_setting(text):
    with pytest.raises(ConfigError, match=r"SAFECACHE_VERIFY='.*' is not allowed: use a number from 0 to 1"):
        config.load({"SAFECACHE_VERIFY": text})


@pytest.mark.parametrize(("text", "share"), [("", 0), ("0", 0), ("0.01", 0.01), ("1", 1), ("1e-3", 0.001)])
def test_share(text, share):
    assert config.load({"SAFECACHE_VERIFY": text}).verify == share


def test_the_guardian_imports_no_torch():
    """Or it could not fork, nor end what hangs."""
    code = "import sys; from safecache.verification import guardian; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(SOURCE), "SAFECACHE": "0"})
