"""`safecache doctor` imports torch in a process of its own, and tells what the hooks do there."""

from __future__ import annotations

import os

import pytest
from conftest import SOURCE, TESTS

FAKE_TORCH = TESTS / "hooks" / "fake_torch"


@pytest.fixture
def examine(machine):
    def examine(*arguments, first=FAKE_TORCH, **env):
        return machine.examine(*arguments, env={"PYTHONPATH": os.pathsep.join([str(first), str(SOURCE)]), **env})

    return examine


def test_hooks_that_are_all_active(examine):
    report = examine("--strict")
    assert report.one("hooks", "ok")["evidence"].startswith("hooks are active: all ")


def test_hook_that_stands_down_is_named_with_its_reason(examine):
    found = examine("--strict", FAKE_TORCH_SIGNATURE="unknown").one("hook-standing-down", "warning")
    assert "FxGraphCache._save_graph" in found["evidence"] and "unknown signature" in found["evidence"]


def test_unit_that_is_switched_off_is_named_with_what_is_lost(examine):
    report = examine("--strict", SAFECACHE_DISABLE="explain")
    found = report.one("unit-switched-off", "warning")
    assert "SAFECACHE_DISABLE names it. " in found["evidence"] and found["remedy"] == "unset SAFECACHE_DISABLE"
    assert "unit-switched-off" not in examine("--strict").codes


def test_torch_that_cannot_be_imported(examine, machine):
    broken = machine.base / "broken" / "torch"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise RuntimeError('no libtorch')")
    found = examine("--strict", first=broken.parent).found("hook-standing-down", "warning")
    assert any("RuntimeError: no libtorch" in one["evidence"] for one in found)


def test_torch_whose_import_ends_the_process_unless_it_is_not_imported(examine, machine):
    broken = machine.base / "broken" / "torch"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("import os; os.abort()")
    report = examine("--strict", first=broken.parent)
    assert "it ends with -6" in report.one("torch-not-imported", "error")["evidence"]
    assert not {"hooks", "torch-not-imported"} & examine("--no-import", first=broken.parent).codes
