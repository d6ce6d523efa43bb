"""A kernel as a program: what has travelled with it is there by its name, or there is no program."""

from __future__ import annotations

import pytest

from safecache.isolation import reports

DESCRIBED = {"kernel": "k", "versions": {"triton": "3"}, "target": {"backend": "cuda", "arch": 90, "warp_size": 32}}


def function(name, source=None, free=None):
    source = source or f"def {name}(x, N: tl.constexpr):\n    pass\n"
    return {"name": name, "source": source, "free": free or {}, "settings": {"noinline": None}}


def encoded(*functions, scopes=({},), **more):
    empty = {"dict": []}
    values = {"signature": empty, "constants": empty, "attributes": empty}
    return {"kind": "kernel", "language": "triton", "functions": functions, "scopes": scopes, **values, **more}


def names(text):
    """What the program defines, with nothing compiled."""
    head = text[: text.index("source = ASTSource")]
    found = {"__file__": "reproduce.py"}
    exec(head.replace("@triton.jit()", ""), found)
    return found


def test_values_are_those_that_travelled():
    import triton.language as tl

    scope = {
        "WIDTH": {"constexpr": 8},
        "half": {"dtype": "fp16"},
        "pairs": {"tuple": [1, {"float": (0.5).hex()}, {"list": [None, True]}]},
        "add": {"triton": ["triton.language.core", "minimum"]},
        "math": {"module": "math"},
        "mine": {"namespace": ["of.mine", {"SIZE": {"constexpr": 4}}]},
        "other": {"function": 1},
        "left_out": {"absent": None},
    }
    found = names(reports.kernel_script(encoded(function("k"), function("helper"), scopes=[scope]), DESCRIBED, {}))
    assert found["WIDTH"] == 8 and found["half"] == tl.float16 and found["pairs"] == (1, 0.5, [None, True])
    assert found["add"] is tl.core.minimum and found["math"].pi > 3 and found["mine"].SIZE == 4
    assert found["mine"].__name__ == "of.mine" and found["other"] is found["helper"] and "left_out" not in found


@pytest.mark.parametrize(
    "what",
    [
        {"kind": "lowered"},
        {"language": "gluon"},
        {"functions": [function("k"), function("k")]},
        {"scopes": [{"N": 1}, {"N": 2}]},
        {"scopes": [{"k": 1}]},
        {"functions": [function("k", free={"N": 1})], "scopes": [{"N": 2}]},
        {"scopes": [{"N": {"record": [["Point", ["x"]], 1]}}]},
    ],
    ids=["lowered", "gluon", "one-name", "two-modules", "hidden", "closure", "named-tuple"],
)
def test_what_one_module_cannot_hold_is_not_written(what):
    assert reports.kernel_script(encoded(function("k")) | what, DESCRIBED, {}) is None
