"""What the README's command leaves to ``-m full``."""

from __future__ import annotations

import itertools

from conftest import SOURCE

from harness import selection


def test_table_names_tests_that_are_there_and_sample_is_of_cases():
    for name in selection.read():
        path, _, function = name.partition("::")
        text = (SOURCE / path).read_text()
        assert not function or f"def {function}(" in text, name


def test_sample_covers_each_pair_with_fewer_cases_than_the_product():
    cases = {f"{a}-{b}-{c}": {"a": a, "b": b, "c": c} for a, b, c in itertools.product(range(4), range(3), range(3))}
    every = set().union(*map(selection.pairs, cases.values()))
    taken = selection.sample(cases, 16)
    assert set().union(*(selection.pairs(cases[name]) for name in taken)) == every
    assert taken == selection.sample(dict(reversed(cases.items())), 16), "whatever the order"


def test_sample_of_one_parameter_has_so_many_cases():
    assert len(selection.sample({f"t[{n}]": {"n": n} for n in range(9)}, 3)) == 3
