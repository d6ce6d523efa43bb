"""A miss of a graph is explained by what was changed, and by nothing else."""

from __future__ import annotations

import pytest
from scenes import explain_scenes

CAUSES = [
    pytest.param(
        {"inductor": {"max_autotune": True}},
        {"inductor config max_autotune": ("False", "True")},
        id="setting of inductor",
    ),
    pytest.param(
        {"options": {"epilogue_fusion": False}},
        {"inductor config epilogue_fusion": ("True", "False")},
        id="option of the decorator",
    ),
    pytest.param({"custom_pass": 1}, {"source of custom pass post_grad_custom_pre_pass": ("none", ...)}, id="new pass"),
    pytest.param(
        {"given": {"shape": (4, 4)}},
        {"example input 0: shape": ("[8, 8]", "[4, 4]"), "example input 1: shape": ("[8, 8]", "[4, 4]")},
        id="shape",
    ),
    pytest.param(
        {"given": {"dtype": "float64"}},
        {"example input 0: dtype": ("float32", "float64"), "example input 1: dtype": ("float32", "float64")},
        id="dtype",
    ),
    pytest.param({"given": {"transposed": True}}, {"example input 0: stride": ("(8, 1)", "(1, 8)")}, id="stride"),
]


def said_of(rows, layer):
    row = next(row for row in rows if row["layer"] == layer)
    return {each["what"]: (each["before"], each["after"]) for each in row["differences"]}


def matches(said, expected):
    return said.keys() == expected.keys() and all(
        value in (..., said[name][place]) for name, values in expected.items() for place, value in enumerate(values)
    )


@pytest.mark.parametrize(("change", "expected"), CAUSES)
def test_changed_part_is_named_with_both_values_in_both_caches(product, change, expected):
    hits, said = product.run(explain_scenes.compile_product, **change)
    assert hits == [0, 0]
    rows = product.rows()
    for layer in ("aot", "fx"):
        assert matches(said_of(rows, layer), expected), rows[:2]
        assert next(row["reason"] for row in rows if row["layer"] == layer) == "key differs"
    assert len(said) == 2 and all(name in line for name in expected for line in said), said


def test_edited_function_is_told_by_the_lines_of_its_graph(product):
    hits, _ = product.run(explain_scenes.compile_product, function="edited")
    assert hits == [0, 0]
    for layer, after in ("aot", "matmul_1 = matmul @ p_0"), ("fx", "torch.ops.aten.mm.default(mm, arg"):
        said = said_of(product.rows(), layer)
        assert [name.partition(" line ")[0] for name in said] == ["graph"] * len(said) and said, said
        assert any(after in values[1] or "p_0" in values[1] or "arg" in values[1] for values in said.values()), said


def test_another_build_of_torch_is_named_and_not_what_follows_from_it(product):
    hits, _ = product.run(explain_scenes.compile_product, torch_key="another", inductor={"max_autotune": True})
    assert hits == [0, 0]
    assert product.causes("aot") == product.causes("fx") == ["torch"]


def test_edited_custom_pass_is_told_from_a_new_one(product):
    product.run(explain_scenes.compile_product, custom_pass=1)
    hits, _ = product.run(explain_scenes.compile_product, custom_pass=2)
    assert hits == [0, 0]
    said = said_of(product.rows(), "aot")
    assert list(said) == ["source of custom pass post_grad_custom_pre_pass"]
    assert "none" not in said["source of custom pass post_grad_custom_pre_pass"]


def test_setting_of_functorch_is_named_and_costs_the_entry_of_aotautograd_alone(product):
    hits, said = product.run(explain_scenes.compile_product, functorch={"treat_parameters_as_free_to_save": False})
    assert hits == [0, 1] and len(said) == 1
    assert product.causes("aot") == ["functorch config treat_parameters_as_free_to_save"]


def test_backward_graph_has_the_name_of_its_function_and_its_half(product):
    hits, said = product.run(explain_scenes.compile_product, given={"grad": True})
    assert hits == [0, 0] and len(said) == 3
    names = {row["name"] for row in product.rows()}
    assert {"program.product", "program.product forward", "program.product backward"} <= names
    assert product.causes("aot") == ["example input 0: requires_grad"]


def test_hit_says_and_writes_nothing(product):
    before = product.rows()
    hits, said = product.run(explain_scenes.compile_product)
    assert hits == [1, 1] and said == []
    assert product.rows() == before


def test_first_compile_is_one_of_what_was_never_seen(product_template, product):
    rows = product.rows()
    assert {row["reason"] for row in rows} == {"never seen"} and len(rows) == 2
    assert {row["name"] for row in rows} == {"program.product", "program.product forward"}


def test_graphs_that_are_compiled_apart_within_a_function_have_names_of_their_own(explained):
    _, said = explained.run(explain_scenes.compile_in_parts)
    names = [line.partition(" entry of ")[2].partition(":")[0] for line in said if "AOTAutograd" in line]
    assert names == ["program.product", "program.product graph 1"]
