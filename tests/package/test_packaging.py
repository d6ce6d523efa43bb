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


def shipped(names):
    return {name.removesuffix(".py") for name in names}


@pytest.mark.parametrize("name", NAMED)
def test_what_metadata_names_is_shipped_and_there(name):
    top = name.partition(":")[0].partition(".")[0]
    wheel, sdist = (BUILD["targets"][target] for target in ("wheel", "sdist"))
    assert top in shipped(wheel["only-include"]) and top in shipped(sdist["include"])
    assert callable(pkgutil.resolve_name(name))


def test_all_that_is_shipped_is_found_in_an_editable_installation():
    """Which adds these directories to sys.path."""
    assert BUILD["dev-mode-dirs"] == ["."]
    assert all((ROOT / name).exists() for name in BUILD["targets"]["wheel"]["only-include"])
