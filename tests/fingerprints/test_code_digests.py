"""The digest of a function is that of what it does: another constant, name or module is another, another path is not."""

from __future__ import annotations

import pytest

from safecache.signing import provenance

SOURCE = "def f(x, *, y=2):\n    return [x in {'a', 'b', 'c'}, lambda z: (x, y, 1, z)]\n"
CHANGES = [("1", "1.0"), ("1", "True"), ("'b'", "'d'"), ("x, y", "y, x"), ("lambda z", "lambda w"), ("*, ", "")]


def digest_of(source, path="<source>", module="m"):
    namespace = {}
    exec(compile(source, path, "exec", dont_inherit=True), namespace)
    return provenance.digest_code(namespace["f"].__code__, of=module, line=True)


@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_any_change_shows(before, after):
    assert before in SOURCE and digest_of(SOURCE) != digest_of(SOURCE.replace(before, after))


def test_module_counts_and_the_path_does_not():
    assert digest_of(SOURCE) == digest_of(SOURCE, "/elsewhere.py") != digest_of(SOURCE, module="n")


def test_line_counts():
    assert digest_of(SOURCE) != digest_of("\n" + SOURCE)
