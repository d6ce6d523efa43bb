"""The way to the culprit of a failed pickle reads like the expression that reaches it."""

from __future__ import annotations

import dataclasses
import functools
import pickle
import threading
from collections import OrderedDict, namedtuple
from typing import Any

import pytest

from safecache.entries.saving import find_culprit

CULPRIT = lambda: None  # noqa: E731  a function that pickle cannot find by its name
Pair = namedtuple("Pair", "left right")


class Box:
    def __init__(self, **attributes):
        vars(self).update(attributes)


class Slotted:
    __slots__ = ("held", "unset")

    def __init__(self, held):
        self.held = held


class OneSlot:
    __slots__ = "held"

    def __init__(self, held):
        self.held = held


class BelowSlotted(Slotted):
    """Has a __dict__ beside the slots that it inherits."""

    def __init__(self, held, beside=0):
        super().__init__(held)
        self.beside = beside


class Hostile:
    """Whose attributes must not be asked for but where they are."""

    def __init__(self, held):
        self.held = held

    def __getattr__(self, name):
        raise RuntimeError(f"asked for {name}")

    def __getstate__(self):
        return vars(self)


class HostileSlots(Hostile):
    __slots__ = ("unset",)

    def __getstate__(self):
        return {"held": self.held}


class Renaming(Box):
    def __getstate__(self):
        return {"stored as": self.held, "more": 1}


class Making(Box):
    def __getstate__(self):
        return {"made": threading.Lock()}


class Reducing(Box):
    def __reduce__(self):
        return Box, (), {"kept": self.held}


@dataclasses.dataclass
class Inner:
    items: list[Any]


@dataclasses.dataclass
class Outer:
    inner: Inner
    name: str = "outer"


PATHS = {
    "root": (CULPRIT, "entry"),
    "attribute": (Box(held=CULPRIT), "entry.held"),
    "dict-value": ({"ok": 1, "key": CULPRIT}, "entry['key']"),
    "dict-value-by-number": ({7: CULPRIT}, "entry[7]"),
    "dict-value-by-tuple": ({("a", 1): CULPRIT}, "entry[('a', 1)]"),
    "dict-key": ({CULPRIT: 1}, "entry.keys()[function]"),
    "ordered-dict": (OrderedDict(key=CULPRIT), "entry['key']"),
    "list": ([0, 1, CULPRIT], "entry[2]"),
    "tuple": ((0, CULPRIT), "entry[1]"),
    "long-tuple": ((0, 1, 2, 3, 4, CULPRIT), "entry[5]"),
    "namedtuple": (Pair(1, CULPRIT), "entry.right"),
    "set": ({CULPRIT}, "entry{function}"),
    "frozenset": (frozenset([CULPRIT]), "entry{function}"),
    "partial-func": (functools.partial(CULPRIT), "entry.func"),
    "partial-args": (functools.partial(print, 1, CULPRIT), "entry.args[1]"),
    "partial-keywords": (functools.partial(print, end=CULPRIT), "entry.keywords['end']"),
    "nested-dataclasses": (Outer(Inner([0, {"key": (CULPRIT,)}])), "entry.inner.items[1]['key'][0]"),
    "all-kinds-nested": (
        Box(parts=[functools.partial(print, {"k": Box(held=Pair(CULPRIT, 0))})]),
        "entry.parts[0].args[0]['k'].held.left",
    ),
    "state-with-other-names": (Renaming(held=CULPRIT), "entry.held"),
    "state-made-for-the-pickle": (Making(), "entry['made']"),
    "reduced-to-another-object": (Box(box=Reducing(held=CULPRIT)), "entry.box.held"),
    "hostile-getattr-on-the-way": (Box(hostile=Hostile([CULPRIT])), "entry.hostile.held[0]"),
    "hostile-getattr-and-a-slot-not-set": (HostileSlots(CULPRIT), "entry.held"),
    "long-key": ({"k" * 100: CULPRIT}, "entry['" + "k" * 39 + "…]"),
}


@pytest.mark.parametrize(("root", "path"), PATHS.values(), ids=PATHS)
def test_path_leads_to_the_culprit(root, path):
    with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
        pickle.dumps(root)
    assert find_culprit(root, "entry").path == path


SLOTS = {
    "slot": (Slotted(CULPRIT), "entry.held"),
    "slot-given-as-string": (OneSlot(CULPRIT), "entry.held"),
    "inherited-slot": (BelowSlotted(CULPRIT), "entry.held"),
    "attribute-beside-slots": (BelowSlotted(1, CULPRIT), "entry.beside"),
    "below-a-slot": ([Slotted([CULPRIT])], "entry[0].held[0]"),
}


@pytest.mark.parametrize(("root", "path"), SLOTS.values(), ids=SLOTS)
def test_path_leads_through_slots(root, path):
    assert find_culprit(root, "entry").path == path


PICKLABLE = [None, 1, "text", [1, {2: (3,)}], Box(a=1), Pair(1, 2), Slotted(1), Hostile(1), len, Box, {1}]


@pytest.mark.parametrize("root", PICKLABLE, ids=lambda root: type(root).__name__)
def test_what_can_be_pickled_has_no_culprit(root):
    assert find_culprit(root, "entry") is None


def test_path_of_middling_length_is_whole():
    root = CULPRIT
    for _ in range(11):
        root = [root]
    assert find_culprit(root, "entry").path == "entry" + "[0]" * 11
