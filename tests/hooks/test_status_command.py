"""``safecache status`` says what every hook does, and its exit code whether all is well."""

from __future__ import annotations

import json
import re
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
from conftest import NEEDS_TORCH, SOURCE
from helpers import key_cases

from safecache.patching.activation import list_hooks
from safecache.signing import key_files

FAKE_RELEASE = (2, 14)


def states(said):
    return {hook["state"] for hook in json.loads(said.lines[-1])["hooks"]} - {"not for this torch"}


def test_every_hook_active_exits_0(command_line):
    said = command_line("status", "--json")
    assert said.returncode == 0 and states(said) == {"active"}, said.errors


def test_hook_that_stands_down_exits_1_and_is_named_with_its_reason(command_line):
    said = command_line("status", "--json", FAKE_TORCH_SIGNATURE="unknown")
    (hook,) = [
        hook for hook in json.loads(said.lines[-1])["hooks"] if hook["state"] not in ("active", "not for this torch")
    ]
    assert said.returncode == 1 and hook["name"].endswith("FxGraphCache._save_graph")
    assert hook["state"] == "standing down" and hook["reason"].startswith("unknown signature")


def test_hook_on_what_needs_a_package_that_is_not_installed_is_not_missed(command_line):
    said = command_line("status", "--json", FAKE_TORCH_WITHOUT_CUTLASS="1")
    quack = [hook for hook in json.loads(said.lines[-1])["hooks"] if "_vendor.quack.cache.jit" in hook["name"]]
    found = {(hook["state"], hook["reason"]) for hook in quack}
    assert found == {("not for this torch", "cutlass is not installed")} and said.returncode == 0, said.errors


def test_unknown_torch_exits_1(command_line):
    said = command_line("status", "--json", FAKE_TORCH_VERSION="2.16.0")
    assert said.returncode == 1 and states(said) == {"standing down"}
    assert json.loads(said.lines[-1])["torch"] == "2.16.0"


def test_switched_off_exits_1(command_line):
    said = command_line("status", "--json", SAFECACHE="0")
    assert said.returncode == 1 and states(said) == {"inactive"}, said.errors


@pytest.mark.parametrize("is_revoked", [False, True])
def test_process_that_only_verifies_exits_0_while_its_key_is_good(command_line, tmp_path, is_revoked):
    key = key_cases.PUBLIC._replace(revoked=1.0 if is_revoked else None)
    key_files.save(str(tmp_path / "farm.pub.json"), key)
    said = command_line("status", "--json", SAFECACHE_KEY_FILE=str(tmp_path / "farm.pub.json"))
    found = json.loads(said.lines[-1])
    assert (said.returncode, found["only_verifies"], found["key"]) == (int(is_revoked), not is_revoked, None)
    lines = command_line("status", SAFECACHE_KEY_FILE=str(tmp_path / "farm.pub.json")).lines
    assert any(line.startswith("verifies only") for line in lines) is not is_revoked, lines


def test_no_key_exits_1(command_line, tmp_path):
    said = command_line("status", "--json", SAFECACHE_KEY_FILE=str(tmp_path / "none"))
    assert said.returncode == 1 and json.loads(said.lines[-1])["only_verifies"] is False


@pytest.fixture
def broken(tmp_path):
    """A directory with a torch that cannot be imported."""
    (tmp_path / "broken" / "torch").mkdir(parents=True)
    (tmp_path / "broken" / "torch" / "__init__.py").write_text("raise RuntimeError('broken')")
    return tmp_path / "broken"


def test_no_import_imports_no_torch(command_line, broken):
    said = command_line("status", "--json", "--no-import", pythonpath=(broken, SOURCE))
    assert said.returncode == 0 and states(said) == {"not yet imported"}, said.errors


def test_torch_that_cannot_be_imported_exits_1_with_the_reason(command_line, broken):
    said = command_line("status", "--json", pythonpath=(broken, SOURCE))
    hooks = json.loads(said.lines[-1])["hooks"]
    reasons = {hook["reason"] for hook in hooks if hook["name"].startswith("torch.")} - {"cutlass is not installed"}
    assert said.returncode == 1 and reasons == {"RuntimeError: broken"}


@pytest.mark.parametrize("arguments", [["status"], ["status", "--json"]])
def test_bad_setting_is_one_line(command_line, arguments):
    said = command_line(*arguments, SAFECACHE_STRICT="perhaps")
    assert (said.returncode, said.lines, said.errors.count("\n")) == (78, [], 1)
    assert said.errors.startswith("safecache: SAFECACHE_STRICT='perhaps' is not allowed: use ")


def rows_of(said):
    """Of the table of hooks, which is the last."""
    return said.lines[1 + next(number for number, line in enumerate(said.lines) if line.startswith("hook ")) :]


def test_hooks_are_counted_by_unit_and_all_are_named_on_request(command_line):
    # Nothing stands in for CUTLASS here.
    hooks = [hook for _, hook in list_hooks() if not hook.module.startswith("cutlass.")]
    known = [hook for hook in hooks if not hook.is_not_for(FAKE_RELEASE)]
    said = command_line("status", COLUMNS="200")
    counted = [int(count) for line in said.lines for count in re.findall(r"(\d+) active", line)]
    assert said.returncode == 0 and sum(counted) == len(known) and len(said.lines) < 30, said.lines
    everything = command_line("status", "--all", COLUMNS="200")
    assert sum(bool(re.search(r"\S +active\b", row)) for row in rows_of(everything)) == len(known), everything.lines
    (told,) = {
        line.partition(" active ")[2].strip() for line in everything.lines if "FileCacheManager.get_file" in line
    }
    assert told.startswith("not through triton.knobs.cache.manager_class: a manager made directly"), told


def test_nearest_command_is_suggested_for_one_that_is_none(command_line):
    said = command_line("statsu")
    assert (said.returncode, said.lines) == (2, [])
    assert said.errors == "safecache: there is no command 'statsu': did you mean 'stats'?\n"
    assert "did you mean" not in command_line("xyzzy").errors


def test_hook_that_is_off_is_named_with_its_reason(command_line):
    said = command_line("status", COLUMNS="200", FAKE_TORCH_SIGNATURE="unknown")
    rows = rows_of(said)
    assert said.returncode == 1 and rows and all("standing down" in row for row in rows), said.lines


def test_sinks_of_the_release_are_listed_with_what_verifies_them(command_line):
    """The fake torch is not the one of the table: what it has not is said to have vanished."""
    said = command_line("status", "--sinks", "--json")
    report = json.loads(said.lines[-1])
    assert said.returncode == 1 and any("iterate_over_candidates" in sink for sink in report["vanished"]), said.errors


@NEEDS_TORCH
def test_sinks_of_the_installed_release_are_listed_without_importing_torch(command_line, broken):
    """Those of one of its modules: the scan of all is that of tests/patching/test_sinks.py."""
    installed = Path(find_spec("torch").origin).parent / "_inductor" / "codecache.py"
    (broken / "torch" / "_inductor").mkdir()
    shutil.copy(installed, broken / "torch" / "_inductor")
    said = command_line("status", "--sinks", "--json", "--no-import", pythonpath=(broken, SOURCE))
    report = json.loads(said.lines[-1])
    (lookup,) = [sink for sink in report["sinks"] if "iterate_over_candidates" in sink["sink"]]
    assert lookup["hook"] == "codecache:iterate_over_candidates" and lookup["state"] == "not yet imported"
    assert "unknown" not in {sink["state"] for sink in report["sinks"]}, said.errors
    assert not any("codecache.py" in sink for sink in report["vanished"]), said.errors
