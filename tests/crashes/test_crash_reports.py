"""What is left of a crash: a report that reproduces it without us, and a note that has it skipped next time."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from crashes.conftest import SECRET
from crashes.crash_names import DEADLY
from safecache.isolation import crashes

of_crashed = pytest.mark.xdist_group("crashed")


def reproduced(crash, tmp_path):
    """What becomes of the report's script within two minutes of the CPU, where there is nothing but Triton."""

    def limit():
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (120, 121))

    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-E", os.path.join(crash["report"], "reproduce.py")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, cwd="/", preexec_fn=limit)


@of_crashed
@pytest.mark.parametrize("name", ["too-many-constraints", "unknown-operand", "read-here"])
def test_script_of_the_report_crashes_in_the_same_way(crashed, tmp_path, name):
    done = reproduced(crashed.crashes[name.replace("-", "_")], tmp_path)
    assert done.returncode == -signal.SIGABRT
    assert done.stdout.split()[-1] == DEADLY[name]


@of_crashed
def test_script_of_the_report_fails_in_the_same_pass_or_dies_of_the_same_file(crashed, tmp_path):
    done = reproduced(crashed.crashes["square"], tmp_path)
    assert "Assertion `" in done.stderr and "PassManager::run failed" in done.stderr
    [file] = [crash for crash in crashed.crashes.values() if crash["signal"] == signal.SIGSEGV]
    assert reproduced(file, tmp_path).returncode == -signal.SIGSEGV


def test_hang_ends_with_the_timeout(home):
    ended = home.compile("hang", "endless", env={"SAFECACHE_COMPILE_TIMEOUT": "2"}).result
    for crash in ended:
        assert (crash["error"], crash["how"]) == ("TritonCompileCrash", "timeout")
        assert "more than 2 s" in crash["text"] and "SAFECACHE_ISOLATE=1,timeout=" in crash["text"]
    assert ended[1]["stage"] == "source" and not os.path.exists(os.path.join(ended[1]["report"], "reproduce.py"))


@of_crashed
def test_report_says_what_was_compiled_and_how_it_ended(crashed):
    crash = crashed.crashes["unknown_operand"]
    with open(os.path.join(crash["report"], "report.json"), encoding="utf-8") as file:
        report = json.load(file)
    assert report["kernel"] == "unknown_operand" and report["file"].endswith("crashing_kernels.py")
    assert report["signature"] == {"x": "*i32", "y": "*i32", "N": "constexpr"} and report["constants"] == {"N": 128}
    assert report["target"] == {"backend": "cuda", "arch": 90, "warp_size": 32}
    assert report["options"]["num_warps"] == 4 and set(report["versions"]) == {
        "triton",
        "python",
        "machine",
        "safecache",
    }
    assert report["stage"] == "ptx" and report["ended"]["words"] == report["ended"]["again"] == "SIGABRT"
    assert report["hash"].startswith(os.path.basename(crash["report"]))


@of_crashed
def test_report_has_what_the_compiler_said_and_was_given(crashed):
    directory = crashed.crashes["unknown_operand"]["report"]
    texts = {path.name: path.read_text() for path in Path(directory).iterdir()}
    assert texts["stderr.txt"].count("LLVM ERROR: Invalid $ operand number") == 2
    assert "in the second run" in texts["stderr.txt"]
    assert "def unknown_operand" in texts["kernel.txt"]
    assert "tt.func public @unknown_operand" in texts["kernel.source"]
    assert "define" in texts["kernel.llir"] and "kernel.ttgir" not in texts
    assert any(name.endswith(".repro.mlir") for name in texts)


@of_crashed
def test_report_has_nothing_of_the_environment(crashed):
    files = [path for report in crashed.reports for path in report.iterdir()]
    assert files and not [path for path in files if SECRET in path.read_text()]


@of_crashed
def test_what_has_crashed_is_skipped_by_the_next_process_at_once(crashed):
    answer = crashed.compile("unknown-operand", "narrow-register")
    assert [crash["error"] for crash in answer.result] == ["TritonCompileCrash"] * 2
    assert answer.children == 0 and answer.stats["known compiler crash"] == 2 and "compile crashed" not in answer.stats
    [message] = answer.warnings
    assert "safecache forget" in message


@of_crashed
def test_forgotten_crash_is_met_again_and_reported_where_it_was(crashed, home, run, settings):
    shutil.copytree(crashed.base, home.base, dirs_exist_ok=True)
    settings(XDG_CONFIG_HOME=home.base / "config")
    report = os.path.basename(crashed.crashes["unknown_operand"]["report"])
    stamps = {path: path.stat().st_mtime_ns for path in home.reports}
    assert home.compile("unknown-operand").stats["known compiler crash"] == 1
    assert run("forget", report, "--in", home.cache).lines == ["1 forgotten"]
    answer = home.compile("unknown-operand")
    assert answer.stats["compile crashed"] == 1
    assert answer.result[0]["report"] == str(home.cache / ".safecache" / "crashes" / report)
    assert stamps == {path: path.stat().st_mtime_ns for path in home.reports}


@of_crashed
def test_list_of_crashes_says_which_are_skipped(crashed, run, settings):
    settings(XDG_CONFIG_HOME=crashed.base / "config")
    rows = json.loads(run("ls", "--crashed", "--json", crashed.cache).out)["crashed"]
    assert {row["kernel"]: row["stage"] for row in rows} == {
        kernel: crash["stage"] for kernel, crash in crashed.crashes.items()
    }
    assert all(row["skipped"] and os.path.isdir(row["report"]) for row in rows)
    shown = run("ls", "--crashed", crashed.cache).out
    assert shown.count("(skipped)") == len(rows) and all(row["hash"][:16] in shown for row in rows)


def facts(root, hash, size=0):
    """Of a compile that crashed, with this hash."""
    function = SimpleNamespace(arg_names=[], src="")
    source = SimpleNamespace(name="k", fn=function, signature={}, language=SimpleNamespace(name="TRITON"))
    backend = SimpleNamespace(target=SimpleNamespace(backend="cuda", arch=90, warp_size=32))
    request = SimpleNamespace(root=str(root), hash=hash, source=source, backend=backend, options=SimpleNamespace())
    return request, {"words": "SIGABRT"}, "ptx", "x" * size, "/nonexistent"


def test_report_never_replaces_that_of_another_kernel(tmp_path):
    first = crashes.write_report(*facts(str(tmp_path), "ab" * 32))
    other = crashes.write_report(*facts(str(tmp_path), "ab" * 8 + "cd" * 24))
    assert crashes.write_report(*facts(str(tmp_path), "ab" * 32)) == first != other
    assert {path: summary["hash"] for path, summary in crashes.list_reports(str(tmp_path)).items()} == {
        first: "ab" * 32,
        other: "ab" * 8 + "cd" * 24,
    }


def test_reports_are_the_latest_so_many(tmp_path, monkeypatch):
    monkeypatch.setattr(crashes, "_MOST_REPORTS", 3)
    written = [crashes.write_report(*facts(str(tmp_path), f"{number:064x}"[::-1])) for number in range(5)]
    for age, path in enumerate(written[:-1]):
        if os.path.exists(path):
            os.utime(path, (age, age))
    last = crashes.write_report(*facts(str(tmp_path), "ff" * 32))
    assert sorted(crashes.list_reports(str(tmp_path))) == sorted([*written[3:], last])


def test_reports_hold_so_many_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(crashes, "_MOST_BYTES", 10_000)
    crashes.write_report(*facts(str(tmp_path), "ab" * 32, size=6_000))
    last = crashes.write_report(*facts(str(tmp_path), "cd" * 32, size=6_000))
    assert list(crashes.list_reports(str(tmp_path))) == [last]


def test_report_that_cannot_be_written_does_not_hide_the_crash(home):
    home.cache.mkdir()
    (home.cache / ".safecache").mkdir()
    (home.cache / ".safecache" / "crashes").write_text("in the way")
    [crash] = home.compile("unknown-operand").result
    assert crash["error"] == "TritonCompileCrash" and crash["report"] is None
    assert "No report could be written: " in crash["text"]
