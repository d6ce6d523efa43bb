"""The text files that vLLM keeps: they are attested, or not used; one that cannot be written ends nothing."""

from __future__ import annotations

import ast
import dataclasses
import errno
import json
import logging
import os
import shutil
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from safecache.built_code import vllm_files
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
    assert str(table) in said and "vLLM recompiles" in said


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


@dataclasses.dataclass(frozen=True)
class ModelInfo:
    architecture: str
    is_attention_free: bool = False


class Registered:
    """As vLLM's _LazyRegisteredModel: what it knows of a class, by the hash of the class's file."""

    module_name, class_name = "vllm.model_executor.models.llama", "LlamaForCausalLM"

    def __init__(self, root):
        self.root = root

    def _get_cache_dir(self):
        return self.root / "modelinfos"

    def _get_cache_filename(self):
        return "vllm-model_executor-models-llama-LlamaForCausalLM.json"

    def load(self, module_hash="abc"):
        """In another process."""
        attestations._state.reset()
        return vllm.load_model_info(unused, self, (module_hash,), {})

    def save(self, info, module_hash="abc"):
        vllm.save_model_info(unused, self, (info, module_hash), {})

    @property
    def file(self):
        return self._get_cache_dir() / self._get_cache_filename()


def unused(*_):
    raise AssertionError("vLLM's own is not called")


LLAMA = ModelInfo("LlamaForCausalLM")


@pytest.fixture
def registered(tmp_path, monkeypatch, settings):
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__="0.33.0"))
    monkeypatch.setattr(sys.modules[__name__], "_ModelInfo", ModelInfo, raising=False)
    settings(TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "inductor"))
    keyring.current()
    return Registered(tmp_path / "vllm")


def test_class_of_a_model_is_known_again(registered):
    assert registered.load() is None
    registered.save(LLAMA)
    assert registered.load() == LLAMA
    stock = json.loads(registered.file.read_text())
    assert stock == {"hash": "abc", "modelinfo": dataclasses.asdict(LLAMA)}, "stock vLLM reads it too"


def plant(registered):
    lying = {"hash": "abc", "modelinfo": {"architecture": "LlamaForCausalLM", "is_attention_free": True}}
    registered.file.write_text(json.dumps(lying))


@pytest.mark.parametrize("copies", [True, False], ids=["copy", "no copy"])
def test_planted_class_is_not_believed(registered, copies, caplog):
    registered.save(LLAMA)
    plant(registered)
    if not copies:
        shutil.rmtree(registered.root.parent / "inductor")
    assert registered.load() == (LLAMA if copies else None)
    (said,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert str(registered.file) in said
    registered.save(LLAMA)
    assert registered.load() == LLAMA


def test_planted_class_is_an_error_in_strict_mode(registered, settings):
    registered.save(LLAMA)
    plant(registered)
    settings(SAFECACHE_STRICT="1")
    with pytest.raises(EntryRefusedError, match=r"LlamaForCausalLM\.json"):
        registered.load()


@pytest.mark.parametrize("package", ["vllm", "torch", "transformers"])
def test_class_of_another_version_is_looked_at_again_without_a_word(registered, package, monkeypatch, caplog):
    registered.save(LLAMA)
    assert registered.load("def") is None, "the model's file was edited"
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, package, SimpleNamespace(__version__="0.34.0"))
        assert registered.load() is None
    assert registered.load() == LLAMA
    assert not [record for record in caplog.records if record.levelno == logging.WARNING]


OTHER_HASH = '{"hash": "def", "modelinfo": {"architecture": "LlamaForCausalLM"}}'


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"hash": "abc"}', '{"hash": "abc", "modelinfo": {"no": 1}}', OTHER_HASH]
)
def test_content_that_is_none_is_looked_over_while_observing(registered, settings, monkeypatch, text):
    """As in stock vLLM."""
    monkeypatch.setattr(keyring, "_stopped", threading.Event())
    settings(SAFECACHE="observe", TORCHINDUCTOR_CACHE_DIR=str(registered.root.parent / "inductor"))
    registered.file.parent.mkdir(parents=True)
    registered.file.write_text(json.dumps({"hash": "abc", "modelinfo": dataclasses.asdict(LLAMA)}))
    assert registered.load() == LLAMA, "stock's is used"
    registered.file.write_text(text)
    assert registered.load() is None


def test_class_travels_with_the_cache_of_inductor(registered):
    registered.save(LLAMA)
    shutil.rmtree(registered.root)
    assert registered.load() == LLAMA
    shutil.rmtree(registered.root.parent / "inductor")
    assert registered.load() == LLAMA, "vLLM's directory has it by then"


def test_class_is_known_where_nothing_can_be_written(registered, caplog):
    with failing("write", "EROFS", below=registered.root):
        registered.save(LLAMA)
    (said,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert os.strerror(errno.EROFS) in said and registered.load() is None
