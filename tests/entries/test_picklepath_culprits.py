"""The culprit of a failed pickle is described whatever it does: its type, its place in the source and its error."""

from __future__ import annotations

import pickle
import threading

import pytest

from safecache.entries.saving import find_culprit

CULPRIT = lambda: None  # noqa: E731  a function that pickle cannot find by its name
CULPRIT_LINE = CULPRIT.__code__.co_firstlineno


class Box:
    def __init__(self, **attributes):
        vars(self).update(attributes)


class Failing:
    def __getstate__(self):
        raise ValueError("no state today")


class Interrupted:
    def __reduce__(self):
        raise KeyboardInterrupt


class HostileCulprit:
    def __getattr__(self, name):
        raise RuntimeError(f"asked for {name}")

    def __reduce__(self):
        raise TypeError("cannot be pickled")


class HostileList(list):
    # Up to 3.10 object has none, and pickle asks for it.
    def __getstate__(self):
        return None

    def __getattr__(self, name):
        raise RuntimeError(f"asked for {name}")


class Unprintable:
    def __repr__(self):
        raise RuntimeError("has no repr")


def test_function_is_named_with_file_and_line():
    culprit = find_culprit([CULPRIT], "entry")
    assert culprit.type_name == "function"
    assert culprit.defined_at == f"{__file__}:{CULPRIT_LINE} (<lambda>)"
    assert isinstance(culprit.error, (pickle.PicklingError, AttributeError))
    assert str(culprit).startswith(f"entry[0] is a function, defined at {__file__}:{CULPRIT_LINE} (<lambda>): ")
    assert str(culprit.error) in str(culprit)


def test_failing_getstate_is_named_with_its_error_and_file():
    culprit = find_culprit(Box(a=[Failing()]), "entry")
    assert str(culprit) == (f"entry.a[0] is a {__name__}.Failing, defined at {__file__}: ValueError: no state today")


def test_type_without_source_is_named_without_a_place():
    culprit = find_culprit({"lock": threading.Lock()}, "entry")
    assert (culprit.path, culprit.type_name, culprit.defined_at) == ("entry['lock']", "_thread.lock", "")
    assert ", defined at" not in str(culprit)


@pytest.mark.parametrize(
    "wrap", [lambda x: [x], lambda x: Box(down=x), lambda x: {0: x}], ids=["list", "object", "dict"]
)
def test_too_deep_nesting_is_named_by_an_abbreviated_path(wrap):
    root = 0
    for _ in range(5_000):
        root = wrap(root)
    culprit = find_culprit(root, "entry")
    assert isinstance(culprit.error, RecursionError)
    assert culprit.path.startswith("entry") and " more)…" in culprit.path and len(culprit.path) < 200


def test_interrupt_passes_through():
    with pytest.raises(KeyboardInterrupt):
        find_culprit([Interrupted()], "entry")


@pytest.mark.parametrize(
    "root",
    [
        pytest.param([HostileCulprit()], id="getattr-of-culprit"),
        pytest.param(HostileList([CULPRIT]), id="getattr-of-list"),
        pytest.param({(Unprintable(),): CULPRIT}, id="repr-in-key"),
        pytest.param({10**5000: CULPRIT}, id="repr-of-huge-number"),
    ],
)
def test_what_an_entry_raises_while_it_is_described_stays_inside(root):
    assert find_culprit(root, "entry").path.startswith("entry[")
