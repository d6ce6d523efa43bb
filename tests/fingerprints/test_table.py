"""The table of the guide is that of the code, and each row of it is one that something states."""

from __future__ import annotations

import re
from pathlib import Path

import safecache
from safecache.fingerprints import PARTS

PAGE = Path(safecache.__file__).parent / "guide" / "wrong_hits.md"
ROW = re.compile(r"(?m)^\| (.+) \| recompiled \| (.+) \| \[\S+\]\((https://\S+)\) \|$")


def test_the_guide_has_each_row():
    rows = [tuple(row) for row in ROW.findall(PAGE.read_text())]
    assert rows == [tuple(part) for part in PARTS.values()]


def test_each_row_is_stated_somewhere():
    source = "".join(path.read_text() for path in Path(safecache.__file__).parent.glob("fingerprints/*.py"))
    assert all(source.count(f'"{name}"') > 1 for name in PARTS)
