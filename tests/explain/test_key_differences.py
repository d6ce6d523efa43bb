"""What is said to differ: the cause with both values, and nothing that only follows from it."""

from __future__ import annotations

import pytest

from safecache import explain
from safecache.explain import explanations
from safecache.explain.key_records import Component, KeyRecord
from safecache.reporting.kinds import Kind

TENSOR = (
    "TensorMetadata(dtype=torch.float32, shape=torch.Size({shape}), stride={stride}, device=device(type='{device}'), "
    "layout=torch.strided, memory_format=torch.contiguous_format, storage_offset=0, storage_bytes=None, "
    "requires_grad={grad}, is_quantized=False)"
)


def tensor(shape="[8, 16]", stride="(16, 1)", device="cpu", grad=False):
    return TENSOR.format(shape=shape, stride=stride, device=device, grad=grad)


def lines(gm="GraphModule()\n\ndef forward(self, x):\n    y = x * 2\n    return y", given=(), config=(), **attributes):
    said = {"gm": gm, **{f"example_inputs[{n}]": text for n, text in enumerate(given or [tensor()])}}
    said |= {f"inductor_config[{name}]": value for name, value in dict(config, cpp_threads=1).items()} | attributes
    return [f"[h{hash(text)}x] {name}: {text}".replace("-", "m") for name, text in said.items()]


def record(key="a", kind=Kind.AOT_ENTRY, functorch=(), env=(), versions=None, made=1.0, process="1", **fields):
    said = lines(**fields)
    parts = explain.parse_components(said, versions or {"torch": "2.15"}, dict(functorch), dict(env))
    return KeyRecord(kind, key, "model.f", made, parts, made, process)


def differences(before, after):
    return [str(difference) for difference in explanations.compare(record(**before), record("b", **after))]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (
            {"config": {"max_autotune": False}},
            {"config": {"max_autotune": True}},
            ["inductor config max_autotune: False → True"],
        ),
        ({}, {"given": [tensor("[4, 16]")]}, ["example input 0: shape: [8, 16] → [4, 16]"]),
        ({}, {"given": [tensor("[4, 8]", "(8, 1)")]}, ["example input 0: shape: [8, 16] → [4, 8]"]),
        ({}, {"given": [tensor(stride="(1, 8)")]}, ["example input 0: stride: (16, 1) → (1, 8)"]),
        ({}, {"given": [tensor(device="cuda")]}, ["example input 0: device: cpu → cuda"]),
        ({}, {"given": [tensor(grad=True)]}, ["example input 0: requires_grad: False → True"]),
        (
            {},
            {"given": ["('s77',)"]},
            [
                "example input 0: dtype=float32, shape=[8, 16], stride=(16, 1), device=cpu, "
                "memory_format=contiguous_format → dynamic size s77"
            ],
        ),
        (
            {"system_info[device]": "{'name': 'A100'}"},
            {"system_info[device]": "{'name': 'H200'}"},
            ["device: A100 → H200"],
        ),
        (
            {"system_info[version]": "{'triton': 'abcdefg', 'cuda': '12.8'}", "system_info[hash]": "1"},
            {"system_info[version]": "{'triton': 'abcdefg', 'cuda': '13.0'}", "system_info[hash]": "2"},
            ["cuda: 12.8 → 13.0"],
        ),
        (
            {"autograd_config": "1", "functorch": {"a": 1}},
            {"autograd_config": "2", "functorch": {"a": 2}},
            ["functorch config a: 1 → 2"],
        ),
        ({"autograd_config": "1"}, {"autograd_config": "2"}, ["functorch config changed"]),
        ({"cpp_runtime_thread_count": "2"}, {"cpp_runtime_thread_count": "8"}, ["number of CPU threads: 2 → 8"]),
        ({}, {"cache_key_tag": "mine"}, ["cache_key_tag: none → mine"]),
    ],
)
def test_difference_is_said_in_a_persons_words(before, after, expected):
    assert differences(before, after) == expected


def test_edited_graph_is_told_by_its_lines_and_what_was_put_in_between_by_itself():
    gm = "GraphModule()\n\ndef forward(self, x):\n    z = x + 1\n    y = x * 2\n    return z"
    assert differences({}, {"gm": gm}) == ["graph line 3: none → z = x + 1", "graph line 5: return y → return z"]


def test_graph_of_inductors_follows_from_its_inputs_and_settings():
    other = {"gm": "def forward(self, x):\n    return x * 3", "given": [tensor("[4, 16]")]}
    assert differences({"kind": Kind.FX_ENTRY}, {"kind": Kind.FX_ENTRY, **other}) == [
        "example input 0: shape: [8, 16] → [4, 16]"
    ]
    assert len(differences({}, other)) > 1  # Dynamo's does not


def test_settings_of_another_torch_follow_from_it():
    after = {"torch_version": "2", "versions": {"torch": "2.16"}, "config": {"new": True}}
    [said] = differences({"torch_version": "1"}, after)
    assert said.startswith("torch: 2.15 (sources") and "→ 2.16 (sources" in said


def test_constants_of_a_graph_that_no_line_shows_still_count():
    before, after = record(), record("b")
    changed = [part._replace(digest="other") if part.name == "graph" else part for part in after.components]
    assert list(map(str, explanations.compare(before, after._replace(components=tuple(changed))))) == ["graph changed"]


def test_variable_is_named_only_beside_the_setting_that_it_sets():
    variables = {"TORCHINDUCTOR_MAX_AUTOTUNE": "1", "TORCH_LOGS": "+inductor"}
    after = {"config": {"max_autotune": True}, "env": variables}
    said = differences({"config": {"max_autotune": False}}, after)
    assert said == ["env TORCHINDUCTOR_MAX_AUTOTUNE: none → 1", "inductor config max_autotune: False → True"]
    assert differences({}, {"env": variables}) == []


def test_environment_makes_no_key_of_torchs_a_nearer_one():
    after = record("z", process="2", config={"a": 1})
    here = record("here", config={"a": 2}, env={})
    there = record("there", config={"a": 1}, env={f"TORCH_{n}": "1" for n in range(9)})
    assert nearest(after, here, there) == "there"


def test_most_telling_difference_comes_first():
    after = {"given": [tensor("[4, 16]")], "config": {"max_autotune": True}, "system_info[device]": "{'name': 'H200'}"}
    said = differences({"config": {"max_autotune": False}, "system_info[device]": "{'name': 'A100'}"}, after)
    assert [text.partition(":")[0] for text in said] == ["device", "inductor config max_autotune", "example input 0"]


def nearest(after, *others):
    found = explanations.find_nearest(after, others)
    return found and found.key


def test_nearest_has_the_fewest_differences_and_is_the_latest_of_such():
    after = record("z", process="2", config={"a": 1, "b": 1})
    far, near = record("far", config={"a": 2, "b": 2}), record("near", config={"a": 1, "b": 2})
    assert nearest(after, far, near) == nearest(after, near, far) == "near"
    assert nearest(after, near, near._replace(key="later", made=2.0)) == "later"
    assert nearest(after) is None and nearest(after, after) is None


def test_nearest_is_of_the_same_build_if_there_is_one():
    after = record("z", process="2", torch_version="1")
    other_build = record("build", torch_version="2")
    edited = record(
        "edited", torch_version="1", gm="def forward(self, y, z):\n    return y @ z", given=[tensor(), tensor()]
    )
    assert nearest(after, other_build, edited) == "edited"


def test_nearest_is_of_another_process_if_there_is_one():
    """One that tunes a kernel has just saved its other configurations."""
    after = record("z", process="2", gm="def forward(self, x):\n    return x", config={"warps": 8})
    sibling = after._replace(
        key="sibling", components=record(gm="def forward(self, x):\n    return x", config={"warps": 4}).components
    )
    before = record("before", process="1", config={"warps": 8})
    assert nearest(after, sibling, before) == "before" and nearest(after, sibling) == "sibling"


def test_line_of_another_form_is_passed_over():
    said = ["no line of torch's", "[abc] torch_version: x"]
    parts = explain.parse_components(said, {"torch": "2.15"}, {}, {})
    assert [part.name for part in parts] == ["torch"]


def test_only_so_much_of_a_value_is_kept():
    [part] = explain.parse_components(["[abc] fx_kwargs[x]: " + "y" * 5000], {}, {}, {})
    assert part == Component("argument of Inductor's x", part.digest, "y" * 299 + "…")
