"""The command that applies the patches: all of them or none, in any order, and back to the byte."""

from __future__ import annotations

import itertools
import json
import os
import py_compile
import shutil
import stat
import subprocess
import sys

import pytest
from conftest import SOURCE, needs_root

from patches import generate
from patches.conftest import safecache
from patches.workshop import LINES, A, B, Workshop, inserted, replaced

# They need no torch.
pytestmark = pytest.mark.default_release


@pytest.fixture
def workshop(tmp_path):
    """Three patches: two that insert at the same place, one of them in two files, and one that replaces beside it."""
    workshop = Workshop(tmp_path)
    workshop.patch("first", {A: inserted(inserted(LINES, 30, "f2"), 10, "f0", "f1"), B: inserted(LINES, 0, "f3")})
    workshop.patch("second", {A: inserted(LINES, 10, "s0", "s1", "s2")})
    workshop.patch("third", {A: replaced(LINES, 10, 2, "t0")})
    return workshop


NAMES = ("first", "second", "third")


def test_patch_is_applied_and_reverted(workshop):
    pristine = workshop.files()
    workshop.done("apply", "third")
    assert (workshop.site / A).read_text().splitlines() == replaced(LINES, 10, 2, "t0")
    assert workshop.states() == {"first": "not applied", "second": "not applied", "third": "applied"}
    workshop.done("revert", "third")
    assert workshop.files() == pristine


@pytest.mark.parametrize("order", list(itertools.permutations(NAMES)), ids="-".join)
def test_patches_of_one_file_come_and_go_in_any_order(workshop, order):
    pristine = workshop.files()
    for name in order:
        workshop.done("apply", name)
    expected = replaced(LINES, 10, 2, "f0", "f1", "s0", "s1", "s2", "t0")
    assert (workshop.site / A).read_text().splitlines() == inserted(expected, 34, "f2")
    workshop.done("revert", order[0])
    assert workshop.states() == {name: "not applied" if name == order[0] else "applied" for name in NAMES}
    for name in order[1:]:
        workshop.done("revert", name)
    assert workshop.files() == pristine


def test_all_are_applied_by_one_command_as_by_many(workshop):
    workshop.done("apply")
    at_once = workshop.files()
    workshop.done("revert")
    for name in NAMES:
        workshop.done("apply", name)
    assert workshop.files() == at_once


def test_applying_again_changes_nothing(workshop):
    workshop.done("apply", "first")
    before = (workshop.site / A).stat()
    done = workshop.run("apply", "first")
    assert (done.returncode, done.stdout) == (0, "nothing to do\n")
    assert (workshop.site / A).stat().st_ino == before.st_ino


@pytest.mark.parametrize("state", ["pristine", "patched"])
def test_file_with_another_byte_is_refused(workshop, state):
    """Of all patches that were asked for none is applied, or taken back, also not those of other files."""
    workshop.patch("other", {B: inserted(LINES, 20, "o0")})
    if state == "patched":
        workshop.done("apply")
    content = (workshop.site / A).read_bytes()
    (workshop.site / A).write_bytes(content.replace(b"line_4 = 3", b"line_4 = 4", 1))
    before = workshop.files()
    for action in ("apply", "revert"):
        done = workshop.run(action)
        assert done.returncode == 1
        assert f"{workshop.site / A} is neither that of torch 2.13.0" in done.stderr
        assert workshop.files() == before
    assert workshop.run("check", "other").returncode == 0
    assert workshop.run("check").returncode == 1
    assert workshop.states()["second"] == "does not fit"


def test_patches_that_change_the_same_lines_are_refused_together(workshop):
    workshop.patch("fourth", {A: replaced(LINES, 11, 3, "x0"), B: inserted(LINES, 0, "x1")})
    workshop.done("apply", "fourth")
    before = workshop.files()
    done = workshop.run("apply")
    assert done.returncode == 1
    assert "third and fourth change the same lines of torch/a.py" in done.stderr
    assert workshop.files() == before
    workshop.done("revert", "fourth")
    workshop.done("apply", "third")


def test_patch_is_of_its_own_release_alone(workshop):
    workshop.patch("later", {A: inserted(LINES, 5, "l0")}, releases="2.13.1")
    workshop.patch("both", {A: inserted(LINES, 6, "b0")}, releases="2.13.0, 2.13.1")
    assert "later" not in workshop.states()
    assert workshop.states()["both"] == "not applied"
    workshop.write(workshop.site, "torch/version.py", ["__version__ = '2.13.1'"])
    assert set(workshop.states()) == {"later", "both"}


def test_unknown_name_is_refused(workshop):
    done = workshop.run("apply", "first", "forth")
    assert done.returncode == 1
    assert "no patch for torch 2.13.0 is called forth; those that there are: first, second, third" in done.stderr
    assert workshop.states()["first"] == "not applied"


def test_directory_without_torch_is_refused(workshop):
    shutil.rmtree(workshop.site / "torch")
    assert workshop.run("list").returncode == 1
    assert "--target names the directory that they lie in" in workshop.run("apply").stderr


def test_other_name_of_a_file_keeps_the_old_content(workshop, tmp_path):
    """An installer's cache has a hard link to it: what is installed from there later must be as upstream made it."""
    os.link(workshop.site / A, tmp_path / "cached.py")
    workshop.done("apply", "first")
    assert (tmp_path / "cached.py").read_text().splitlines() == LINES
    assert (workshop.site / A).read_text().splitlines() != LINES


@pytest.mark.parametrize("part", ["torch", A])
def test_nothing_is_written_through_a_symbolic_link(workshop, tmp_path, part):
    (workshop.site / part).rename(tmp_path / "elsewhere")
    (workshop.site / part).symlink_to(tmp_path / "elsewhere")
    before = workshop.files()
    done = workshop.run("apply", "first")
    assert done.returncode == 1
    assert f"{workshop.site / part} is a symbolic link" in done.stderr
    assert workshop.files() == before


def test_modes_stay(workshop):
    (workshop.site / A).chmod(0o640)
    for action in ("apply", "revert"):
        workshop.done(action, "first")
        assert stat.S_IMODE((workshop.site / A).stat().st_mode) == 0o640
        assert stat.S_IMODE((workshop.site / B).stat().st_mode) == 0o644


@pytest.mark.parametrize("tools", [("git",), ("patch",)], ids=["git", "patch"])
def test_either_tool_does(workshop, tmp_path, tools):
    pristine = workshop.files()
    workshop.done("apply")
    patched = workshop.files()
    workshop.done("revert")
    environment = {"PATH": str(_only(tmp_path, *tools))}
    for action, result in (("apply", patched), ("revert", pristine)):
        done = workshop.run(action, env=environment)
        assert done.returncode == 0, done.stderr
        assert workshop.files() == result


def test_without_a_tool_nothing_is_done(workshop, tmp_path):
    before = workshop.files()
    done = workshop.run("apply", env={"PATH": str(_only(tmp_path))})
    assert done.returncode == 1
    assert "neither git nor patch is installed" in done.stderr
    assert workshop.files() == before


def _only(tmp_path, *tools):
    """A directory with nothing but these programs."""
    directory = tmp_path / "programs"
    directory.mkdir()
    for tool in tools:
        (directory / tool).symlink_to(shutil.which(tool))
    return directory


def test_repository_around_the_files_has_no_say(workshop, tmp_path):
    """Git applies a patch to what is its own, and skips the rest without a word; its settings can change a patch."""
    settings = tmp_path / "gitconfig"
    settings.write_text("[apply]\n\twhitespace = fix\n[core]\n\tautocrlf = true\n")
    workshop.patch("blank", {A: inserted(LINES, 20, "trailing = 1   ")})
    scratch = workshop.site / "scratch"
    scratch.mkdir()
    subprocess.run(["git", "init", "-q", str(workshop.site)], check=True)
    environment = {"GIT_CONFIG_GLOBAL": str(settings), "TMPDIR": str(scratch), "GIT_DIR": str(workshop.site / ".git")}
    done = workshop.run("apply", "blank", env=environment)
    assert done.returncode == 0, done.stderr
    assert (workshop.site / A).read_text().splitlines() == inserted(LINES, 20, "trailing = 1   ")
    assert list(scratch.iterdir()) == []


@needs_root
def test_directory_that_cannot_be_written_is_left_alone(workshop):
    """Nor are the others changed."""
    directory = workshop.site / "torch" / "nested"
    mount = f"mount --bind {directory} {directory} && mount -o remount,bind,ro {directory}"
    before = workshop.files()
    done = workshop.run("apply", before=("unshare", "-m", "bash", "-c", f'{mount} && exec "$@"', "bash"))
    assert done.returncode == 1
    assert "Read-only file system" in done.stderr
    assert workshop.files() == before


def test_compiled_source_is_not_used_any_more(workshop):
    """Not even one that Python would not compare with its source."""
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    import_it = [sys.executable, "-c", "import torch.nested.b as b; print(hasattr(b, 'marker'))"]
    (workshop.site / B).parent.parent.joinpath("__init__.py").write_text("")
    workshop.patch("marked", {B: inserted(LINES, 3, "marker = 1")})
    for action, expected in (("apply", "True"), ("revert", "False")):
        py_compile.compile(str(workshop.site / B), invalidation_mode=unchecked)
        workshop.done(action, "marked")
        done = subprocess.run(import_it, cwd=workshop.site, text=True, capture_output=True, check=True)
        assert done.stdout.strip() == expected


def test_whoever_may_not_write_there_finds_it_compiled(workshop):
    compiled = py_compile.compile(str(workshop.site / A))
    workshop.done("apply", "first")
    assert os.path.exists(compiled)
    workshop.done("apply", "first")


@pytest.mark.parametrize("action", ["apply", "revert"])
def test_killed_half_way_it_is_finished_or_taken_back(workshop, action):
    """Before each of the renames."""
    pristine = workshop.files()
    workshop.done("apply", "first")
    patched = workshop.files()
    if action == "apply":
        workshop.done("revert", "first")
    states = set()
    for number in (1, 2):
        before = (
            "strace",
            "-f",
            "-qq",
            "-o",
            os.devnull,
            "-e",
            "trace=rename",
            "-e",
            f"inject=rename:signal=KILL:when={number}",
        )
        killed = workshop.run(action, "first", before=before)
        assert killed.returncode != 0, killed.stdout
        states.add(workshop.states()["first"])
        workshop.done("revert", "first")
        assert workshop.files() == pristine
        workshop.done("apply", "first")
        assert workshop.files() == patched
        if action == "apply":
            workshop.done("revert", "first")
    assert "partly applied" in states


def test_failure_half_way_changes_nothing(workshop):
    pristine = workshop.files()
    before = ("strace", "-f", "-qq", "-o", os.devnull, "-e", "trace=rename", "-e", "inject=rename:error=EIO:when=2")
    failed = workshop.run("apply", "first", before=before)
    assert failed.returncode == 1
    assert "Input/output error" in failed.stderr
    assert workshop.files() == pristine


def test_list_tells_people_and_programs(workshop):
    workshop.done("apply", "second")
    rows = [line.split() for line in workshop.run("list").stdout.splitlines()]
    assert ["torch", "2.13.0", "second", "applied", "keeps", "its", "promise"] in rows
    report = json.loads(workshop.run("list", "--json", "first").stdout)["patches"]
    assert [(patch["patch"], patch["files"], patch["reason"]) for patch in report] == [("first", [A, B], "")]


def test_who_applies_is_told_of_the_keys(workshop):
    assert "hash their own sources into the keys" in workshop.run("apply").stdout


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda text: text.replace("Release:", "Releases:"), id="no release"),
        pytest.param(lambda text: text.replace("\n---\n", "\n", 1), id="no separator"),
        pytest.param(lambda text: text.replace("torch/a.py", "../a.py"), id="outside"),
        pytest.param(lambda text: text + "rubbish\n", id="rubbish behind it"),
        pytest.param(lambda text: text.replace("index ", "index 0"), id="no blob ids"),
    ],
)
def test_file_that_is_no_patch_of_ours_is_refused(workshop, damage):
    path = workshop.patches / "torch-2.13" / "second.patch"
    path.write_text(damage(path.read_text()))
    before = workshop.files()
    done = workshop.run("apply", "first")
    assert done.returncode == 1
    assert str(path) in done.stderr
    assert workshop.files() == before


def test_patches_are_found_in_a_checkout_and_in_an_installed_package(tmp_path):
    """Where the wheel has them, as pyproject.toml says."""
    wheel = tmp_path / "safecache"
    shutil.copytree(SOURCE / "safecache", wheel, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(SOURCE / "patches", wheel / "source_patches" / "patches")
    target = str(generate.installed())
    found = []
    for path in (SOURCE, tmp_path):
        done = safecache("patches", "list", "--json", "--target", target, cwd=path, env={"PYTHONPATH": str(path)})
        assert done.returncode == 0, done.stderr
        found.append([(patch["package"], patch["patch"]) for patch in json.loads(done.stdout)["patches"]])
    assert found[0] == found[1]
    assert ("torch", "verified-loads") in found[0]
