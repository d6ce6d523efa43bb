"""What strict mode raises leaves vLLM's load of a model, where vLLM catches every error; and what vLLM's files are.

The function here does as vLLM 0.33 does. SAFECACHE_TEST_VLLM names a directory with an unpacked wheel: then it is vLLM's.
"""

from __future__ import annotations

import ast
import os
import pprint
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from safecache.built_code import vllm_files
from safecache.entries import artifacts
from safecache.errors import EntryRefusedError
from safecache.integrations import compiler_cache, vllm
from safecache.patching import patching
from safecache.patching.activation import list_hooks
from safecache.reporting.kinds import Kind
from safecache.store import attestations

WHEEL = os.environ.get("SAFECACHE_TEST_VLLM")
torch = SimpleNamespace(compiler=SimpleNamespace())
NEEDS_WHEEL = pytest.mark.skipif(not WHEEL, reason="SAFECACHE_TEST_VLLM names no directory with an unpacked wheel")
OURS = [hook for unit, hook in list_hooks() if unit == "vllm"]


def stand_in(model, aot_compilation_path):
    try:
        with open(aot_compilation_path, "rb") as file:
            return torch.compiler.load_compiled_function(file, f_globals=model.forward.__globals__)
    except Exception:
        return None


def its_function(module, attribute):
    """vLLM's own function, or method, on its own."""
    return function_of(WHEEL, module, attribute)


def function_of(wheel, module, attribute):
    """A server's own function, or method, on its own: what else is in its module needs a GPU or a hundred packages."""
    tree = ast.parse((Path(wheel) / (module.replace(".", "/") + ".py")).read_text(encoding="utf-8"))
    found = tree
    for name in attribute.split("."):
        found = next(node for node in found.body if getattr(node, "name", None) == name)
    found.decorator_list, found.returns = [], None
    for argument in (*found.args.args, *found.args.kwonlyargs):
        argument.annotation = None
    names = {}
    exec(compile(ast.Module([found], []), module, "exec"), names)
    return names[found.name]


def refused_here(file, **named):
    artifacts.require(Kind.AOT_FUNCTION, file.read())


def refused_in_a_pool(file, **named):
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda content: artifacts.require(Kind.AOT_FUNCTION, content), [file.read()]))


def not_ours(file, **named):
    raise RuntimeError("Source code has changed since the last compilation.")


@pytest.fixture(params=["stand-in", "vllm"])
def load(request, tmp_path, monkeypatch):
    """Have vLLM load a file as ``torch_does``; ``force``: VLLM_FORCE_AOT_LOAD."""
    function = stand_in
    if request.param == "vllm":
        if not WHEEL:
            pytest.skip("SAFECACHE_TEST_VLLM names no directory with an unpacked wheel")
        function = its_function("vllm.compilation.decorators", "_try_load_aot_compiled_fn")
    path = tmp_path / "model"
    path.write_bytes(b"not sealed")
    given = {
        "torch": torch,
        "envs": SimpleNamespace(VLLM_FORCE_AOT_LOAD=False),
        "logger": SimpleNamespace(warning=lambda *args: None),
        "monitor_torch_compile": lambda *args, **named: nullcontext(),
        "os": os,
        "set_current_vllm_config": lambda config: nullcontext(),
    }
    for name, value in given.items():
        monkeypatch.setitem(function.__globals__, name, value)
    model = SimpleNamespace(vllm_config=None, _is_encoder=False, forward=nullcontext)
    model.forward = load_here

    def run(torch_does, where=path):
        def hooked(file, **named):
            return compiler_cache.load_compiled_function(torch_does, None, (file,), named)

        torch.compiler.load_compiled_function = hooked
        return vllm.load_model(function, None, (model, str(where)), {})

    return run


def load_here():
    pass


@pytest.mark.parametrize("torch_does", [refused_here, refused_in_a_pool])
def test_refused_model_stops_the_server_in_strict_mode(load, torch_does, settings):
    settings(SAFECACHE_STRICT="1")
    with pytest.raises(EntryRefusedError, match="refused "):
        load(torch_does)


@pytest.mark.parametrize("torch_does", [refused_here, refused_in_a_pool])
def test_refused_model_is_compiled_again(load, torch_does, settings):
    settings()
    assert load(torch_does) is None


def test_what_is_no_refusal_is_vllms_to_handle(load, settings, tmp_path):
    settings(SAFECACHE_STRICT="1")
    assert load(not_ours) is None
    assert load(refused_here, where=tmp_path / "none") is None, "a cold start"


@NEEDS_WHEEL
@pytest.mark.parametrize(
    "target",
    [target for target in OURS if not target.is_on_builtin and target.attribute != "os"],
    ids=lambda target: target.name,
)
def test_signatures_are_those_of_the_wheel(target):
    assert patching.format_signature(its_function(target.module, target.attribute)) in target.signatures


@NEEDS_WHEEL
def test_files_are_all_that_the_wheel_writes():
    tree = ast.parse((Path(WHEEL) / "vllm" / "compilation" / "backends.py").read_text(encoding="utf-8"))
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    names = {text for text in texts if re.fullmatch(r"\w+\.\w+", text) and text.endswith((".py", ".json"))}
    assert names == {vllm_files.TABLE, *vllm_files.ACCOUNTS}


class Manager(SimpleNamespace):
    """As much of vLLM's CompilerManager as its reading and writing of the table needs."""

    def has(self, cache):
        function = its_function("vllm.compilation.backends", "CompilerManager.save_to_file")
        function.__globals__.update(pprint=pprint, open=hooked_open)
        manager = Manager(use_aot_compile=True, disable_cache=False, is_cache_updated=True, cache=cache, **vars(self))
        function(manager)

    def finds(self):
        function = its_function("vllm.compilation.backends", "CompilerManager.initialize_cache")
        function.__globals__.update(ast=ast, os=os, open=hooked_open, Range=Range)
        manager = Manager(use_aot_compile=True, cache={}, compiler=SimpleNamespace(initialize_cache=lambda **named: 0))
        function(manager, os.path.dirname(self.cache_file_path))
        return manager.cache


class Range(NamedTuple):
    start: int
    end: int


def hooked_open(*args, **named):
    return vllm.open_file(open, None, args, named)


@NEEDS_WHEEL
def test_vllm_reads_its_table_while_it_is_its_own(tmp_path):
    manager = Manager(cache_file_path=str(tmp_path / vllm_files.TABLE))
    table = {((1, 128), 0, "inductor_standalone"): {"graph_handle": ("a", "b"), "cache_key": "c"}}
    manager.has(table)
    attestations._state.reset()
    assert list(manager.finds()) == [(Range(1, 128), 0, "inductor_standalone")]
    (tmp_path / vllm_files.TABLE).write_text(repr(table).replace("'a'", "'z'"))
    assert manager.finds() == {}
