"""The text files that SGLang keeps for piecewise graphs: none ends the server, damaged or without room for it.

With SAFECACHE_TEST_SGLANG, a directory with an unpacked wheel, SGLang's own code reads and writes its table.
"""

from __future__ import annotations

import ast
import logging
import os
import pprint
from pathlib import Path
from types import SimpleNamespace

import pytest

from entries.test_vllm_hooks import function_of
from safecache.built_code import vllm_files
from safecache.errors import CacheWriteError
from safecache.integrations import vllm
from safecache.testing import failing

WHEEL = os.environ.get("SAFECACHE_TEST_SGLANG")
ACCOUNT = "computation_graph_1763913600.25.py"
TABLE = {(None, 0, "inductor"): ("fx0", "/a/fx0.py")}


def opened(path, *mode):
    return vllm.open_file(open, None, (str(path), *mode), {})


@pytest.fixture
def place(tmp_path):
    path = tmp_path / "sglang" / "torch_compile_cache" / "0123456789" / "rank_0_0" / "backbone"
    path.mkdir(parents=True)
    return path


@pytest.mark.parametrize("name", [vllm_files.UNUSED_TABLE, ACCOUNT])
@pytest.mark.parametrize("code", ["ENOSPC", "EROFS", "EDQUOT"])
def test_file_that_cannot_be_written_is_one_warning(place, name, code, caplog):
    with failing("write", code, below=place):
        for _ in range(2):
            with opened(place / name, "w") as file:
                file.write("{}")
    (said,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert not list(place.iterdir())
    assert f"could not write SGLang's {place / name} [" in said and "set SGLANG_CACHE_DIR" in said


def test_file_that_cannot_be_written_is_an_error_in_strict_mode(place, settings):
    settings(SAFECACHE_STRICT="1")
    file = opened(place / ACCOUNT, "w")
    file.write("import torch")
    with failing("write", "ENOSPC", below=place), pytest.raises(CacheWriteError, match="No space left"):
        file.close()


def test_file_is_written_as_sglang_writes_it(place):
    for name in (vllm_files.UNUSED_TABLE, ACCOUNT):
        with opened(place / name, "w") as file:
            file.write(repr(TABLE))
        assert (place / name).read_text() == repr(TABLE)


class Manager(SimpleNamespace):
    """As much of SGLang's CompilerManager as its table needs."""

    def does(self, name, *given):
        function = function_of(WHEEL, "sglang.srt.compilation.backend", f"CompilerManager.{name}")
        function.__globals__.update(ast=ast, os=os, pprint=pprint, open=hooked_open)
        function(self, *given)


def hooked_open(*given):
    return vllm.open_file(open, None, given, {})


@pytest.mark.skipif(not WHEEL, reason="SAFECACHE_TEST_SGLANG names no directory with an unpacked wheel")
@pytest.mark.parametrize("damaged", ["", "{(None, 0,", "(" * 100_000, "7"])
def test_damaged_table_ends_no_server(place, damaged):
    (place / vllm_files.UNUSED_TABLE).write_text(damaged)
    manager = Manager(cache=None, compiler=SimpleNamespace(initialize_cache=lambda **named: None))
    manager.does("initialize_cache", str(place))
    assert manager.cache == {}
    manager.cache, manager.is_cache_updated = TABLE, True
    manager.does("save_to_file")
    assert ast.literal_eval((place / vllm_files.UNUSED_TABLE).read_text()) == TABLE


@pytest.mark.skipif(not WHEEL, reason="SAFECACHE_TEST_SGLANG names no directory with an unpacked wheel")
def test_table_is_of_no_use_to_sglang():
    """It would have to be attested otherwise."""
    package = Path(WHEEL) / "sglang"
    asking = {
        path.name for path in package.rglob("*.py") if "compiler_manager.load(" in path.read_text(encoding="utf-8")
    }
    compiling = (package / "srt" / "compilation" / "backend.py").read_text(encoding="utf-8")
    assert not asking and "self.load(" not in compiling
