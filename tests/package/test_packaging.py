"""What is installed has all that its metadata names, and the directory of a checkout likewise."""

from __future__ import annotations

import pkgutil
from pathlib import Path

import pytest

tomllib = pytest.importorskip("tomllib", reason="Python 3.11 is the first that reads pyproject.toml")
ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
BUILD = PROJECT["tool"]["hatch"]["build"]
GROUPS = PROJECT["project"]["entry-points"]
NAMED = [*PROJECT["project"]["scripts"].values(), *(name for group in GROUPS.values() for name in group.values())]


@pytest.mark.parametrize("name", NAMED)
def test_what_metadata_names_is_shipped_and_there(name):
    """At the top of a wheel, and, of an editable installation, below one of the directories that it adds to sys.path."""
    top = name.partition(":")[0].partition(".")[0]
    moved = BUILD["targets"]["wheel"]["sources"]
    tops = {"safecache", *(path.stem for directory in moved for path in (ROOT / directory).glob("*.py"))}
    assert top in tops and BUILD["targets"]["wheel"]["only-include"] == ["safecache"]
    assert set(BUILD["dev-mode-dirs"]) == {".", *moved}
    assert callable(pkgutil.resolve_name(name))
