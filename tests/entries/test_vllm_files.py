"""The text files that vLLM keeps: its table is attested, or not used; one that cannot be written ends nothing."""

from __future__ import annotations

import ast
import errno
import json
import logging
import os
import shutil
from pathlib import Path

import pytest

from safecache.code import vllm_files
from safecache.errors import CacheWriteError, EntryRefusedError
from safecache.integrations import vllm
from safecache.signing import keyring
from safecache.store import attestations
from safecache.testing import failing

TABLE = {((1, 128), 0, "inductor_standalone"): {"graph_handle": ("artifact_0", "/a/artifact_0"), "cache_key": "a0"}}
OTHER = {((1, 128), 0, "inductor_standalone"): {"graph_handle": ("artifact_1", "/a/artifact_1"), "cache_key": "a1"}}


def opened(path, *mode):
    return vllm.open_file(open, None, (str(path), *mode), {})


def write(path, text):
    """As vLLM does, whatever the file."""
    with opened(path, "w") as file:
        file.write(text)


def read(path):
    """As CompilerManager.initialize_cache() does, in another process."""
    attestations._state.reset()
    with opened(path) as file:
        return ast.literal_eval(file.read())


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "vllm" / "torch_compile_cache"


@pytest.fixture
def table(cache):
    """One that vLLM has written."""
    keyring.current()
    path = cache / "0123456789" / "rank_0_0" / "backbone" / vllm_files.TABLE
    path.parent.mkdir(parents=True)
    write(path, repr(TABLE))
    return path


def test_table_is_read_as_it_was_written(table):
    assert read(table) == TABLE == ast.literal_eval(table.read_text()), "stock vLLM reads it too"


def swap(table, cache):
    """The one of another model, with all that attests it there."""
    other = cache / "abcdef0123" / "rank_0_0" / "backbone" / vllm_files.TABLE
    other.parent.mkdir(parents=True)
    write(other, repr(OTHER))
    shutil.copy(other, table)


def rank(table, cache):
    other = cache / "0123456789" / "rank_1_0" / "backbone" / vllm_files.TABLE
    other.parent.mkdir(parents=True)
    write(other, repr(OTHER))
    shutil.copy(other, table)


ATTACKS = [
    pytest.param(lambda table, cache: table.write_text(repr(OTHER)), id="edited"),
    pytest.param(lambda table, cache: table.write_text(repr(TABLE)[:40]), id="cut short"),
    pytest.param(lambda table, cache: table.write_bytes(b""), id="empty"),
    pytest.param(lambda table, cache: table.write_bytes(b"\xff\xfe"), id="no text"),
    pytest.param(lambda table, cache: shutil.rmtree(cache / ".safecache"), id="stock's"),
    pytest.param(swap, id="another model's"),
    pytest.param(rank, id="another rank's"),
]


@pytest.mark.parametrize("attack", ATTACKS)
def test_table_that_is_not_attested_is_not_used(table, cache, attack, caplog):
    attack(table, cache)
    assert read(table) == {}
    (said,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert str(table) in said and "compiled again" in said


def test_record_of_another_model_is_none(table, cache):
    """Whoever can write to the cache can put a record where another lies."""
    swap(table, cache)
    records = sorted(path for path in (cache / ".safecache").rglob("*") if path.is_file())
    latest = max(records, key=os.path.getmtime)
    for path in records:
        path.write_bytes(latest.read_bytes())
    assert read(table) == {}


@pytest.mark.parametrize("attack", ATTACKS)
def test_strict_mode_raises(table, cache, attack, settings):
    settings(SAFECACHE_STRICT="1")
    attack(table, cache)
    with pytest.raises(EntryRefusedError, match=r"refused .*vllm_compile_cache\.py \["):
        read(table)


def test_table_is_attested_anew_where_it_was_refused(table):
    table.write_text(repr(OTHER))
    assert read(table) == {}
    write(table, repr(OTHER))
    assert read(table) == OTHER


def test_directory_that_a_user_has_chosen_is_the_root(tmp_path):
    path = tmp_path / "chosen" / "rank_0_0" / "backbone" / vllm_files.TABLE
    path.parent.mkdir(parents=True)
    write(path, repr(TABLE))
    assert read(path) == TABLE and (tmp_path / "chosen" / ".safecache").is_dir()
    assert not (tmp_path / ".safecache").exists()


@pytest.mark.parametrize("name", [vllm_files.TABLE, *vllm_files.ACCOUNTS])
@pytest.mark.parametrize("code", ["ENOSPC", "EROFS", "EDQUOT"])
def test_full_disk_is_one_warning(cache, name, code, caplog):
    path = cache / "0123456789" / "rank_0_0" / "backbone" / name
    path.parent.mkdir(parents=True)
    with failing("write", code, below=cache):
        for _ in range(2):
            write(path, "{}")
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert not path.exists() and not list(path.parent.iterdir())
    assert len(said) == 1 and os.strerror(getattr(errno, code)) in said[0], said


def test_full_disk_is_an_error_in_strict_mode(table, settings):
    settings(SAFECACHE_STRICT="1")
    with failing("write", "ENOSPC", below=table.parent), pytest.raises(CacheWriteError, match="No space left"):
        write(table.parent / "computation_graph.py", "import torch")


@pytest.mark.parametrize("name", [vllm_files.TABLE, *vllm_files.ACCOUNTS])
def test_what_fails_midway_leaves_what_was_there(table, name):
    path = table.parent / name
    path.write_text("{'before'}")
    with pytest.raises(RuntimeError), opened(path, "w") as file:
        file.write("{'half")
        raise RuntimeError
    assert path.read_text() == "{'before'}"


def test_other_files_are_pythons_own(tmp_path):
    path = tmp_path / "model.py"
    with opened(path, "w") as file:
        json.dump({"a": 1}, file)
    with opened(path) as file:
        assert file.name == str(path) and json.load(file) == {"a": 1}
    with pytest.raises(FileNotFoundError):
        opened(Path("none") / "model.py")
