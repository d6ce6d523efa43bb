"""Which tests the README's command leaves to ``-m full``: full.txt, by what each costs and what only it covers.

A line names a file or a test, all of whose cases are left out; or, with a number, a test of which so many cases stay:
those that cover the most values of its parameters, and pairs of values, and so stand for the product of all.
"""

from __future__ import annotations

import itertools
import zlib
from collections import defaultdict
from pathlib import Path

TABLE = Path(__file__).with_name("full.txt")


def read():
    """How many cases of each test, or file, named in the table are not left out."""
    lines = (line.split() for line in TABLE.read_text().splitlines() if not line.startswith("#"))
    return {name: int(kept[0]) if kept else 0 for name, *kept in lines}


def pairs(indices):
    """The values in a case, by the names of its parameters, and the pairs of them."""
    return {*indices.items(), *itertools.combinations(sorted(indices.items()), 2)}


def sample(cases, number):
    """The names of so many of ``cases``, which maps names to the indices of the parameters' values."""
    left, met, taken = sorted(cases, key=lambda name: zlib.crc32(name.encode())), set(), []
    while left and len(taken) < number:
        best = max(left, key=lambda name: len(pairs(cases[name]) - met))
        left.remove(best)
        met |= pairs(cases[best])
        taken.append(best)
    return taken


def left_out(items):
    """Those of pytest's items that are left to ``-m full``."""
    table, tests = read(), defaultdict(list)
    for item in items:
        tests[item.nodeid.partition("[")[0]].append(item)
    for name, cases in tests.items():
        number = table.get(name.partition("::")[0], table.get(name))
        if number is not None:
            kept = sample({case.nodeid: case.callspec.indices for case in cases}, number) if number else ()
            yield from (case for case in cases if case.nodeid not in kept)
