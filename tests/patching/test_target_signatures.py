"""The signature of a target is told as inspect.signature tells it, however it is found out."""

from __future__ import annotations

import functools

import pytest

from safecache.patching import patching


def plain(a, b, /, c, d=1, *rest, e, f=None, **named):
    local = a
    return local


def without_rest(a, *, e=1, f):
    pass


def nothing():
    local = 1
    return local


@functools.wraps(plain)
def wrapper(*args, **kwargs):
    pass


def annotated(a: int = 1, *named: str, **kwargs: int) -> None:
    pass


class Class:
    def method(self, a=1):
        pass

    @classmethod
    def of_class(cls, *, a):
        pass

    @staticmethod
    def static(a, b=2):
        pass


def stated():
    pass


stated.__signature__ = patching.inspect.signature(without_rest)

EXPECTED = {
    plain: "a, b, c, d=, rest, *e, *f=, named",
    without_rest: "a, *e=, *f",
    nothing: "",
    wrapper: "a, b, c, d=, rest, *e, *f=, named",
    annotated: "a=, named, kwargs",
    Class.method: "self, a=",
    Class.of_class: "cls, *a",
    Class.static: "a, b=",
    stated: "a, *e=, *f",
    patching: "<module safecache.patching.patching>",
}


@pytest.mark.parametrize("target", EXPECTED, ids=lambda target: target.__name__)
def test_signature_is_names_in_order_with_marks_for_defaults_and_keywords(target):
    assert patching.format_signature(target) == EXPECTED[target]


@pytest.mark.parametrize("target", [plain, without_rest, nothing, annotated, Class.method, Class.static])
def test_signature_of_a_plain_function_is_what_inspect_says(target, monkeypatch):
    fast = patching.format_signature(target)
    monkeypatch.setattr(patching.types, "FunctionType", type(None))
    assert patching.format_signature(target) == fast
