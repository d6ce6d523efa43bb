"""``safecache explain`` on vLLM's own account of its cache keys.

The shape is what vLLM 0.26, 0.27 and 0.33 write. SAFECACHE_TEST_VLLM names a directory with an unpacked wheel: then vLLM's
own code collects the factors and writes them.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import sys
import types
from collections.abc import Mapping, Sequence, Set
from pathlib import Path

import pytest

from safecache.cli.main import main
from safecache.explain import explanations
from safecache.places import layout

WHEEL = os.environ.get("SAFECACHE_TEST_VLLM")
ENV = {
    "CMAKE_BUILD_TYPE": None,
    "NVCC_THREADS": "8",
    "VLLM_API_KEY": "hunter2",
    "VLLM_DISABLED_KERNELS": [],
    "VLLM_SHARED_EXPERTS_STREAM_TOKEN_THRESHOLD": 256,
    "VLLM_USE_AOT_COMPILE": True,
    "VLLM_USE_FASTOKENS": False,
}


def write(cache, key, age, *, part="rank_0_0/backbone", env=None, **hashes):
    """As backends.py does, ``age`` seconds before some moment."""
    place = cache / key / part
    place.mkdir(parents=True)
    said = {"env": ENV | (env or {}), "config_hash": "0a1b", "code_hash": "c0de", "compiler_hash": "77"} | hashes
    with open(place / "cache_key_factors.json", "w") as file:
        json.dump(said, file, indent=2, sort_keys=True)
    os.utime(place / "cache_key_factors.json", (1e9 - age, 1e9 - age))
    return place


@pytest.fixture
def rows(tmp_path, capsys):
    """What explain says of vLLM's keys in a directory, the last first; and all of what it printed."""

    def ask(*arguments):
        main(["explain", "--json", *(arguments or ("--dir", str(tmp_path)))])
        text = capsys.readouterr().out
        return json.loads(text)["vllm"], text

    return ask


def said(row):
    return {difference["what"]: (difference["before"], difference["after"]) for difference in row["differences"]}


def test_key_is_compared_with_the_one_before_it(tmp_path, rows):
    before = write(tmp_path, "1111111111", 100)
    after = write(
        tmp_path, "2222222222", 50, env={"VLLM_USE_AOT_COMPILE": False, "VLLM_API_KEY": "other"}, config_hash="9f"
    )
    [row], text = rows()
    assert (row["directory"], row["against"]) == (str(after), str(before))
    assert (
        row["text"].startswith("config_hash: 0a1b → 9f; ") and "env VLLM_USE_AOT_COMPILE: true → false" in row["text"]
    )
    assert "hunter2" not in text and "other" not in text


def test_key_is_compared_with_the_nearest_of_those_before_it(tmp_path, rows):
    own = write(tmp_path, "1111111111", 100, config_hash="model")
    write(tmp_path, "2222222222", 80, config_hash="another model", code_hash="of it")
    write(tmp_path, "3333333333", 60, config_hash="model", env={"VLLM_USE_FASTOKENS": True})
    write(tmp_path, "4444444444", 0, config_hash="model", env={"NVCC_THREADS": "4"}, compiler_hash="later")
    (*_, row, _), _ = rows()
    assert row["against"] == str(own) and said(row) == {"env VLLM_USE_FASTOKENS": ("false", "true")}


def test_ranks_of_a_key_count_once_and_a_draft_model_by_itself(tmp_path, rows):
    for key, age, code in (("1111111111", 100, "c0de"), ("2222222222", 50, "edited")):
        for rank in range(3):
            write(tmp_path, key, age - rank, part=f"rank_{rank}_0/backbone", code_hash=code)
            write(tmp_path, key, age - rank, part=f"rank_{rank}_0/eagle_head", code_hash=f"draft {code}")
    found, _ = rows()
    parts = {os.path.basename(row["directory"]): said(row) for row in found}
    assert len(found) == 2 and parts == {
        "backbone": {"code_hash": ("c0de", "edited")},
        "eagle_head": {"code_hash": ("draft c0de", "draft edited")},
    }


def test_settings_of_vllm_are_shown_whatever_they_are_called_but_for_texts_that_may_be_secret(tmp_path, rows):
    write(tmp_path, "1111111111", 100)
    changed = {"NVCC_THREADS": 8, "CMAKE_BUILD_TYPE": "", "VLLM_SHARED_EXPERTS_STREAM_TOKEN_THRESHOLD": 512}
    write(tmp_path, "2222222222", 50, env=changed | {"VLLM_API_KEY": "swordfish", "VLLM_DISABLED_KERNELS": ["marlin"]})
    [row], _ = rows()
    assert said(row) == {
        "env CMAKE_BUILD_TYPE": ("null", '""'),
        "env NVCC_THREADS": ("8", "8"),  # a text, then a number: another key
        "env VLLM_API_KEY": ("(not shown)", "(not shown)"),
        "env VLLM_DISABLED_KERNELS": ("[]", '["marlin"]'),
        "env VLLM_SHARED_EXPERTS_STREAM_TOKEN_THRESHOLD": ("256", "512"),
    }


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param({"VLLM_CACHE_ROOT": "{}/vllm"}, id="its-own"),
        pytest.param({"XDG_CACHE_HOME": "{}"}, id="xdg"),
        pytest.param({"HOME": "{}", "VLLM_CACHE_ROOT": "~/vllm"}, id="tilde"),
        pytest.param({"HOME": "{}/.."}, id="home"),
    ],
)
def test_vllms_own_place_is_searched_too_where_none_is_named(tmp_path, rows, monkeypatch, environment):
    caches = tmp_path / ".cache"
    for name in ("VLLM_CACHE_ROOT", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value.format(caches))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    write(caches / "vllm" / "torch_compile_cache", "1111111111", 100)
    write(caches / "vllm" / "torch_compile_cache", "2222222222", 50, compiler_hash="78")
    [row], _ = rows("--last", "1")
    assert said(row) == {"compiler_hash": ("77", "78")}


@pytest.mark.parametrize("content", [b"", b"[" * 100_000, b"7", b"\xff\xfe", b'{"a": '])
def test_what_is_no_file_of_vllms_is_passed_over(tmp_path, capsys, content):
    place = write(tmp_path, "1111111111", 100)
    (place / "cache_key_factors.json").write_bytes(content)
    write(tmp_path, "2222222222", 50)
    assert main(["explain", "--dir", str(tmp_path)]) == (0 if content == b"7" else 1)


# ---------------------------------------------------------------------------------------- with vLLM's own code


def parts_of(path, wanted):
    """The first node of a source that ``wanted`` accepts, as code of its own."""
    source = Path(WHEEL, path).read_text()
    return ast.unparse(next(node for node in ast.walk(ast.parse(source)) if wanted(node)))


def is_function(name):
    return lambda node: isinstance(node, ast.FunctionDef) and node.name == name


def is_dump(node):
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "json.dump" and "env_factors" in ast.unparse(node)


@pytest.fixture
def envs(monkeypatch):
    """vllm/envs.py itself; what it asks of the rest of vLLM needs a hundred packages, and is answered without them."""
    if not WHEEL:
        pytest.skip("SAFECACHE_TEST_VLLM names no directory with an unpacked wheel")
    names = (
        "vllm",
        "vllm.utils",
        "vllm.utils.torch_utils",
        "vllm.utils.torch_version",
        "vllm.config",
        "vllm.config.utils",
    )
    for name in names:
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    for name in ("vllm.utils.torch_utils", "vllm.utils.torch_version"):
        sys.modules[name].is_torch_equal_or_newer = lambda version: True
    normal = {"enum": __import__("enum"), "pathlib": __import__("pathlib"), "is_dataclass": lambda _: False}
    normal |= {"torch": types.SimpleNamespace(dtype=()), "Mapping": Mapping, "Set": Set, "Sequence": Sequence}
    exec(parts_of("vllm/config/utils.py", is_function("normalize_value")), normal)
    sys.modules["vllm.config.utils"].normalize_value = normal["normalize_value"]
    spec = importlib.util.spec_from_file_location("vllm.envs", Path(WHEEL, "vllm/envs.py"))
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "vllm.envs", module)
    spec.loader.exec_module(module)
    return module


def test_what_vllm_itself_writes_is_read_and_named(tmp_path, envs, rows, monkeypatch):
    code = parts_of("vllm/compilation/backends.py", is_dump)

    def run(key, age, **hashes):
        place = tmp_path / "vllm" / "torch_compile_cache" / key / "rank_0_0" / "backbone"
        place.mkdir(parents=True)
        with open(place / "cache_key_factors.json", "w") as f:
            exec(code, {"json": json, "env_factors": envs.compile_factors(), "f": f} | hashes)
        os.utime(place / "cache_key_factors.json", (1e9 - age, 1e9 - age))

    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path / "vllm"))
    assert layout.vllm_cache_dir(os.environ) == os.path.join(envs.VLLM_CACHE_ROOT, "torch_compile_cache")
    run("1111111111", 100, config_hash="0a1b", code_hash="c0de", compiler_hash="77")
    monkeypatch.setenv("VLLM_DISABLED_KERNELS", "marlin,cutlass")
    monkeypatch.setenv("VLLM_API_KEY", "hunter2")  # among the factors until vLLM 0.27
    monkeypatch.setenv("VLLM_SHARED_EXPERTS_STREAM_TOKEN_THRESHOLD", "1")
    run("2222222222", 50, config_hash="9f", code_hash="c0de", compiler_hash="77")
    [factors, _] = explanations.find_factors(str(tmp_path))
    assert len(factors.values) > 200
    [row], text = rows()
    differences = said(row)
    assert differences.pop("env VLLM_API_KEY", None) in (None, ("null", "(not shown)")) and "hunter2" not in text
    assert differences.pop("env VLLM_SHARED_EXPERTS_STREAM_TOKEN_THRESHOLD")[1] == "1"
    assert differences == {
        "config_hash": ("0a1b", "9f"),
        "env VLLM_DISABLED_KERNELS": ("[]", '["marlin", "cutlass"]'),
    }
