"""Each patch is a plain diff of the installed release: git and patch apply it, alone or with others, and take it back."""

from __future__ import annotations

import itertools
import shutil

import pytest
from conftest import SOURCE

from patches.conftest import MADE_BY_HAND, PACKAGES, apply, installed, patches_of

RELEASES = {"torch": ("2.11", "2.12", "2.13", "2.14", "2.15"), "triton": ("3.6", "3.7", "3.8", "3.9")}
FAMILIES = {"torch": {*MADE_BY_HAND}, "triton": {"noexec-guidance"}}
TOOLS = {"git": ("git", "apply", "-p1"), "patch": ("patch", "-p1", "--fuzz=0", "--no-backup-if-mismatch")}


@pytest.fixture
def copy(tmp_path):
    """Of the files that the patches change."""
    site = tmp_path / "site"
    for package in filter(installed, PACKAGES):
        for path in patches_of(package).values():
            for line in path.read_text().splitlines():
                if line.startswith("+++ b/"):
                    name = line.removeprefix("+++ b/")
                    (site / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(installed(package).parent / name, site / name)
    return site


def content(site):
    return {path.relative_to(site): path.read_bytes() for path in site.rglob("*.py")}


def test_each_release_has_all():
    folders = {path.name: {each.stem for each in path.glob("*.patch")} for path in (SOURCE / "patches").iterdir()}
    expected = {f"{name}-{release}": FAMILIES[name] for name, releases in RELEASES.items() for release in releases}
    assert {name: found for name, found in folders.items() if name != "README.md"} == expected


@pytest.mark.parametrize("tool", TOOLS)
def test_tools_apply_all_in_any_order_and_take_them_back(copy, tool):
    before, after = content(copy), set()
    for names in itertools.permutations(MADE_BY_HAND):
        for name in names:
            apply(copy, name, tool=TOOLS[tool])
        changed = content(copy)
        after.add(tuple(sorted(changed.items())))
        assert {path for path in changed if changed[path] != before[path]} == {*before}
        for name in reversed(names):
            apply(copy, name, tool=(*TOOLS[tool], "-R"))
        assert content(copy) == before
    assert len(after) == 1


@pytest.mark.parametrize("package", [name for name in PACKAGES if installed(name)])
def test_patch_says_what_it_promises_and_why_and_changes_python_that_compiles(copy, package):
    for name, path in patches_of(package).items():
        subject, _, why = path.read_text().partition("\n\n")
        assert subject.startswith(f"{name}: ") and "\nRelease: " in why and "\n---\ndiff --git a/" in why
        apply(copy, name)
    for path in copy.rglob("*.py"):
        compile(path.read_bytes(), path, "exec")
