"""What vLLM's key leaves out of a compiled model, and a model with nothing compiled in it."""

from __future__ import annotations

import json
import sys
import types
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from safecache import fingerprints, session
from safecache.built_code import vllm_files
from safecache.errors import RefusedArtifactError
from safecache.integrations import vllm
from safecache.places.refs import Ref
from safecache.ports import Served, tell
from safecache.reporting import events
from safecache.reporting.kinds import Kind, Reason


class Layer:
    """A module of a model."""


class WithLoRA:
    """What LoRA puts in place of one."""


class CustomOp:
    """One of vLLM's, which has chosen what it calls."""

    def __init__(self, native=False):
        self._forward_method = self.forward_native if native else self.forward_cuda

    def forward_native(self):
        pass

    def forward_cuda(self):
        pass


@dataclass
class CacheConfig:
    kv_sharing_fast_prefill: bool = False
    offload_port: int = 1
    hooks: object = field(default_factory=object)


@dataclass
class VllmConfig:
    speculative_config: SimpleNamespace
    model_config: SimpleNamespace
    cache_config: CacheConfig


def model(layer=Layer, parameter="layers.0.weight", tokens=5, cache=None, **limits):
    settings = VllmConfig(
        speculative_config=SimpleNamespace(num_speculative_tokens=tokens),
        model_config=SimpleNamespace(multimodal_config=SimpleNamespace(limit_per_prompt=limits)),
        cache_config=cache or CacheConfig(),
    )
    return SimpleNamespace(
        vllm_config=settings,
        named_modules=lambda: [("layers.0", layer())],
        named_parameters=lambda: [(parameter, None)],
    )


@pytest.fixture(autouse=True)
def server(isolated, monkeypatch):
    """VLLM with one variable that it declares."""
    monkeypatch.setitem(sys.modules, "vllm.envs", SimpleNamespace(environment_variables={"VLLM_DECLARED": None}))
    monkeypatch.setenv("VLLM_DECLARED", "1")
    monkeypatch.setenv("VLLM_PLUGIN_SWITCH", "1")
    yield
    session.reset()
    tell(Served(model()))


def stated(served):
    tell(Served(served))
    return fingerprints.build_fingerprint(Ref(Kind.AOT_FUNCTION), made=None)


def judged(sealed, served):
    tell(Served(served))
    return fingerprints.find_refusal(Ref(Kind.AOT_FUNCTION), sealed)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (model(layer=WithLoRA, parameter="layers.0.base_layer.weight"), "modules of vLLM's model"),
        (model(tokens=7), "number of speculative tokens was '5' and is '7' now"),
        (model(image=0), "multimodal limits was 'none' and is 'image=0' now"),
    ],
    ids=["LoRA", "speculative tokens", "no images"],
)
def test_a_model_of_another_configuration_is_refused(other, said):
    sealed = stated(model())
    assert judged(sealed, model()) is None
    refusal = judged(sealed, other)
    assert refusal is not None and refusal.reason is Reason.STALE and said in refusal.evidence, refusal


def test_a_kernel_that_was_chosen_anew_is_another_model():
    assert judged(stated(model(CustomOp)), model(CustomOp)) is None
    assert judged(stated(model(CustomOp)), model(lambda: CustomOp(native=True))) is not None


def test_a_setting_that_vllm_knows_is_left_to_its_key(monkeypatch):
    sealed = stated(model())
    monkeypatch.setenv("VLLM_DECLARED", "2")
    assert judged(sealed, model(cache=CacheConfig(kv_sharing_fast_prefill=True))) is None


@pytest.mark.parametrize("change", [("VLLM_PLUGIN_SWITCH", "0"), ("VLLM_PLUGIN_SWITCH", None), ("VLLM_NEW", "1")])
def test_a_variable_that_vllm_does_not_declare_is_part_of_a_model(monkeypatch, change):
    sealed = stated(model())
    name, value = change
    monkeypatch.setenv(name, value) if value is not None else monkeypatch.delenv(name)
    refusal = judged(sealed, model())
    assert refusal is not None and name in refusal.evidence, refusal
    assert "'1'" not in sealed[fingerprints.FIELD], "values may be secret"


@pytest.mark.parametrize(
    "name",
    [
        "VLLM_DECLARED",
        "VLLM_PORT",
        "VLLM_SERVICE_HOST",
        "VLLM_PORT_8000_TCP_ADDR",
        "VLLM_MY_LOG_LEVEL",
        "VLLM_POD_NAME",
        "VLLM_OMP_NUM_THREADS_SET_BY_VLLM",
        "VLLM_HF_TOKEN",
        "VLLM_MODEL_PATH",
        "OTHER",
    ],
)
def test_a_variable_that_says_where_something_is_is_not(monkeypatch, name):
    sealed = stated(model())
    monkeypatch.setenv(name, "another")
    assert judged(sealed, model()) is None


@pytest.mark.parametrize("value", ["/models/7", "10.0.0.7:80", "1763927461", "0f8b4c1e5d6a7b8c9d", "9c2f6d1e-1b2c-4d"])
def test_a_value_that_is_of_one_start_is_not_part_of_a_model(monkeypatch, value):
    sealed = stated(model())
    monkeypatch.setenv("VLLM_SET_BY_A_LAUNCHER", value)
    assert judged(sealed, model()) is None


def test_another_release_of_a_server_is_used(monkeypatch):
    monkeypatch.setitem(sys.modules, "sglang", SimpleNamespace(__version__="0.5.22"))
    sealed = stated(model())
    monkeypatch.setitem(sys.modules, "sglang", SimpleNamespace(__version__="0.5.23"))
    assert judged(sealed, model()) is None


def test_what_an_earlier_release_has_stated_besides_is_passed_over():
    sealed = json.loads(stated(model())[fingerprints.FIELD]) | {
        "driver": {"nvidia": "580.1"},
        "configuration": {"a.b": "1"},
    }
    assert judged({fingerprints.FIELD: json.dumps(sealed)}, model()) is None


def test_a_model_with_no_compiled_part_is_an_error_by_name():
    """Vllm's own load catches it, and compiles: _try_load_aot_compiled_fn."""
    called = []
    empty, whole = (SimpleNamespace(submodule_names=lambda names=names: names) for names in ([], ["submod_0"]))
    with pytest.raises(RefusedArtifactError, match="no compiled part"):
        vllm.reconstruct(lambda *args: called.append(args), None, ({}, empty), {})
    assert not called and events.read_counters() == {"empty": 1}
    vllm.reconstruct(lambda *args, **named: called.append(named), None, (), _named(whole))
    assert called and vllm_files.require_parts(["submod_0"]) is None


def _named(parts):
    return {"state": {}, "standalone_compile_artifacts": parts, "vllm_config": None}


@pytest.mark.parametrize(("size", "said"), [(1, {}), (4, {"rank": {"of the default group": "2 of 4"}})])
def test_rank_is_one_of_several(monkeypatch, size, said):
    def yes():
        return True

    group = {"is_available": yes, "is_initialized": yes, "get_world_size": lambda: size, "get_rank": lambda: 2}
    monkeypatch.setitem(sys.modules, "torch.distributed", SimpleNamespace(**group))
    assert fingerprints.make_rank_row() == said
    asks = made_of(
        "edited_module", "def f(): return get_rank()\ndef g(): return 1\n", first=1, last=2, monkeypatch=monkeypatch
    )
    plain = made_of(
        "edited_module", "def f(): return 1\ndef g(): return get_rank()\n", first=1, last=2, monkeypatch=monkeypatch
    )
    assert fingerprints.fingerprint_function(asks).get("rank", {}) == said.get("rank", {})
    assert "rank" not in fingerprints.fingerprint_function(plain)


def made_of(name, text, first, last, monkeypatch):
    """What was compiled ahead of time, and has inlined a function of such a module, in these lines of its file."""
    module = types.ModuleType(name)
    exec(text, module.__dict__)
    monkeypatch.setitem(sys.modules, name, module)
    source = SimpleNamespace(module=name, firstlineno=first, lastlineno=last, content=text)
    return SimpleNamespace(_artifacts=SimpleNamespace(source_info=SimpleNamespace(inlined_sources=[source])))


@pytest.mark.parametrize(("name", "is_stated"), [("edited_module", True), ("torch.edited_module", False)])
def test_inlined_functions_are_stated_but_for_those_of_torch(monkeypatch, name, is_stated):
    rows = fingerprints.fingerprint_function(
        made_of(name, "def f(): return 1\n", first=1, last=2, monkeypatch=monkeypatch)
    )
    assert ("inlined" in rows) is is_stated


def test_names_of_parameters_are_part_of_a_model():
    sealed = stated(model())
    assert judged(sealed, model()) is None
    assert judged(sealed, model(parameter="layers.0.base_layer.weight")).reason is Reason.STALE


def test_a_person_is_told_of_many_files_in_one_line():
    sealed = {fingerprints.FIELD: json.dumps({"files": {f"module_{number}": "digest" for number in range(60)}})}
    assert list(fingerprints.describe_items(sealed)) == [(True, "source file of a module: 60, as digests")]
