"""What `safecache doctor` prints, its exit code, and that no check keeps the others from being made."""

from __future__ import annotations

import json
import threading

import pytest

from safecache import doctor
from safecache.doctor import Check, examine_machine, finding, installation
from safecache.settings import config


def test_warnings_fail_in_strict_mode_alone(machine):
    env = {"TRITON_ALWAYS_COMPILE": "1"}
    assert machine.examine(env=env).code == 0
    report = machine.examine("--no-import", "--strict", env=env)
    assert report.code == 1 and report.worst == "warning"


def test_worst_comes_first_and_all_in_the_same_order_each_time(machine):
    env = {"TRITON_ALWAYS_COMPILE": "1", "TORCHINDUCTOR_COMPILE_THREADS": "x", "SAFECACHE_SHARED": "0"}
    reports = [machine.examine(env=env).findings for _ in range(2)]
    ranks = [finding.SEVERITIES.index(one["severity"]) for one in reports[0]]
    assert ranks == sorted(ranks, reverse=True) and ranks[0] == 3
    assert [one["code"] for one in reports[0]] == [one["code"] for one in reports[1]]


def test_table_for_people_has_the_same_with_a_line_of_summary(machine):
    env = {"TRITON_ALWAYS_COMPILE": "1", "CC": "/no\x1b[2J/cc", "COLUMNS": "300"}
    machine.checks_compilers = True
    said = machine.run("--no-import", env=env)
    assert said.returncode == 1 and "\x1b" not in said.stdout and r"/no\x1b[2J/cc" in said.stdout
    assert said.stdout.index("no-compiler") < said.stdout.index("cache-disabled") < said.stdout.index("versions")
    assert "unset TRITON_ALWAYS_COMPILE" in said.stdout
    assert said.stdout.splitlines()[-1].startswith("1 error, 1 warning, ")


def test_load_takes_no_other_check(machine):
    said = machine.run("--load", "/nowhere", "--json")
    assert said.returncode == 1 and [one["code"] for one in json.loads(said.stdout)["findings"]] == ["not-found"]
    assert machine.run("--load", "/nowhere", "--no-import").returncode == 2


def failing(environ):
    yield finding.info("first", "something is found", "before it failed")
    raise RuntimeError("no idea")


@pytest.fixture
def only(monkeypatch, tmp_path):
    """Have these checks made, with the settings of a machine of no matter."""

    def use(**checks):
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        monkeypatch.setattr(config, "_current", None)
        monkeypatch.setattr(doctor, "CHECKS", {name: Check(find) for name, find in checks.items()})

    return use


def test_check_that_fails_is_a_finding_and_the_others_are_made(only):
    only(broken=failing, versions=installation.check_versions)
    codes = [each.code for each in examine_machine(import_torch=False)]
    assert codes == ["check-failed", "first", "versions"]


def test_check_that_does_not_end_is_a_finding(only, monkeypatch):
    """As where a file server does not answer."""
    waiting = threading.Event()

    def hanging(environ):
        yield finding.info("first", "something is found", "before it hung")
        waiting.wait(60)

    monkeypatch.setattr(doctor, "_DEADLINE", 0.2)
    only(slow=hanging, versions=installation.check_versions)
    found = examine_machine(import_torch=False)
    waiting.set()
    assert [each.code for each in found] == ["check-failed", "first", "versions"]
    assert found[0].severity == "error" and "the check of slow does not end" in found[0].evidence
