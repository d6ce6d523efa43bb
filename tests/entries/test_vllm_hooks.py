"""What strict mode raises leaves vLLM's load of a model, where vLLM catches every error, and compiles.

The function here does as vLLM 0.33 does. SAFECACHE_TEST_VLLM names a directory with an unpacked wheel: then it is vLLM's.
"""

from __future__ import annotations

import ast
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from safecache.entries import artifacts
from safecache.errors import EntryRefusedError
from safecache.hooks import compiler_cache, vllm
from safecache.patching import patching
from safecache.patching.targets import TARGETS
from safecache.reporting.kinds import Kind

WHEEL = os.environ.get("SAFECACHE_TEST_VLLM")
torch = SimpleNamespace(compiler=SimpleNamespace())
OURS = [target for target in TARGETS if target.module.startswith("vllm.")]


def stand_in(model, aot_compilation_path):
    try:
        with open(aot_compilation_path, "rb") as file:
            return torch.compiler.load_compiled_function(file, f_globals=model.forward.__globals__)
    except Exception:
        return None


def its_function(module, attribute):
    """vLLM's own function, or method, on its own: what else is in its module needs a GPU or a hundred packages."""
    tree = ast.parse((Path(WHEEL) / (module.replace(".", "/") + ".py")).read_text(encoding="utf-8"))
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
    with pytest.raises(EntryRefusedError, match="was not used"):
        load(torch_does)


@pytest.mark.parametrize("torch_does", [refused_here, refused_in_a_pool])
def test_refused_model_is_compiled_again(load, torch_does, settings):
    settings()
    assert load(torch_does) is None


def test_what_is_no_refusal_is_vllms_to_handle(load, settings, tmp_path):
    settings(SAFECACHE_STRICT="1")
    assert load(not_ours) is None
    assert load(refused_here, where=tmp_path / "none") is None, "a cold start"


@pytest.mark.skipif(not WHEEL, reason="SAFECACHE_TEST_VLLM names no directory with an unpacked wheel")
@pytest.mark.parametrize("target", OURS, ids=lambda target: target.name)
def test_signatures_are_those_of_the_wheel(target):
    assert patching.signature_of(its_function(target.module, target.attribute)) in target.signatures
