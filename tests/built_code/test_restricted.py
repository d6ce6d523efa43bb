"""What of a program of torch.export passes for plain where nobody has sealed it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest

from safecache.built_code import restricted


@pytest.mark.parametrize(
    "guard",
    [
        "2*L['x'].size()[0] > 7",
        "((L['x'].size()[1]*L['x'].size()[0]) // (L['x'].size()[1] // 2)) != L['x'].size()[0]",
        "L['d']['k'][0].stride()[1] == 1 and not L['n'] < 3",
        "math.floor(L['x'].size()[0] / 2) <= max(1, torch.sym_float(L['n']))",
        "(1 if L['n'] < 3 else 2) == math.inf",
    ],
)
def test_formula_of_sizes_is_a_guard(guard):
    assert restricted.is_plain_guard(guard)


@pytest.mark.parametrize(
    "guard",
    [
        "open('ran', 'w') or True",
        "__import__('os')",
        "L['x'].tofile('ran')",
        "L['x'].__class__",
        "L['x'].size(key=1)",
        "(lambda: 1)()",
        "[x for x in L['x']]",
        "(ran := 1)",
        "f'{L}'",
        'L["x"] == 1',
        "L['x'] == '\\\\'",
        "L['x'] == 1 # '",
        "(L['x']\n== 1)",
        "True, '')\nopen('ran', 'w')\n(1",
        "max(*L['x'])",
        "getattr(L['x'], 'size')()",
        "\uff45val('1')",
        "",
        "(" * 9999 + ")" * 9999,
    ],
    ids=range(19),
)
def test_any_other_text_is_none(guard):
    assert not restricted.is_plain_guard(guard)


@pytest.mark.parametrize(
    "expression",
    [
        "Symbol('s77', positive=True, integer=True)",
        "Max(Integer(1), TruncToInt(Mul(Float('2.5', precision=53), Symbol('s27'))))",
        "Float('-1.0e-10', precision=53)",
        "StrictLessThan(Symbol('u0', integer=True), Rational(1, 2))",
        "2*s0 + 1 <= s1**2",
    ],
)
def test_formula_is_an_expression(expression):
    assert restricted.is_plain_expression(expression, {"TruncToInt"})


@pytest.mark.parametrize(
    "expression",
    [
        "open('ran')",
        "openSymbol('ran')",
        "Symbol('ran', real=open)",
        "Symbol('open(1)')",
        "Symbol('ran').func",
        "Symbol('exit')()",
        "Matrix(1, 1, breakpoint)",
        "S('exit')",
        "Float('ran', precision=53)",
        "'ran'",
        "Integer('1')",
        "1\n+ 1",
        "Add(Symbol('s0')\n)",
        "['ran']",
    ],
)
def test_any_other_expression_is_refused(expression):
    assert not restricted.is_plain_expression(expression, {"TruncToInt"})


def make_tree(context):
    """As torch writes the tree of inputs of a program that has these keyword arguments."""
    parts = [("builtins.tuple", None), ("builtins.dict", context)]
    children = [{"type": type, "context": json.dumps(each), "children_spec": []} for type, each in parts]
    return json.dumps([1, {"type": "builtins.tuple", "context": "null", "children_spec": children}])


@dataclass
class Argument:
    """As the union of torch's schema."""

    type: str
    value: object
    _type = ""


@dataclass
class NamedArgument:
    name: str
    arg: Argument


@dataclass
class Program:
    name: str = "x"
    parameter_name: str = "layers.0.weight"
    metadata: dict[str, str] = field(default_factory=lambda: {"stack_trace": 'File "a",\nline 1'})
    values: object = None
    in_spec: str = field(default_factory=lambda: make_tree(["shift"]))
    out_spec: str = field(default_factory=lambda: make_tree(["sum of all"]))


def nodes(type, value):
    return [NamedArgument("self", Argument(type, value))]


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"values": nodes("as_string", 'it\'s "so"\n')},
        {"values": nodes("as_strings", ["it's"])},
        {"values": nodes("as_operator", "torch.ops.aten.add.Tensor")},
        {"values": Argument("as_string", "floor")},
    ],
)
def test_program_of_names_has_no_code(parts):
    assert restricted.find_code(Program(**parts)) == ""


@pytest.mark.parametrize(
    "parts",
    [
        {"name": "x=print()"},
        {"name": "x.y"},
        {"parameter_name": 'w"+str(print())+"'},
        {"parameter_name": "w\u2028"},
        {"values": Argument("as_string", "' or print() or '")},
        {"values": {"a\n": 1}},
        {"values": {"a": [nodes("as_sym_int", Argument("as_name", "a b"))]}},
        {"values": nodes("as_operator", "torch.os.system")},
        {"values": nodes("as_operator", "torch.ops.load_library.__globals__")},
        {"values": nodes("as_operator", "torch.ops.load_library")},
        {"in_spec": make_tree(["a b"])},
        {"in_spec": make_tree({"a": ["b'"]})},
        {"out_spec": make_tree(["a'"])},
    ],
)
def test_program_with_anything_else_has_code(parts):
    assert restricted.find_code(Program(**parts))
