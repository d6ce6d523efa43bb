"""`warm` runs a program until nothing is compiled any more, and says what a fresh process would still compile."""

from __future__ import annotations

import json
import signal
import textwrap
import time

import pytest

from warming.programs import COMPILED, EXHAUSTIVE, KERNEL, RESTLESS, RESTLESS_KERNEL, WITH_LIBRARY, Home

pytest.importorskip("triton")
pytestmark = pytest.mark.default_release
WAITING = """
    import pathlib
    import signal
    import sys
    import time

    def end(number, _):
        with open("signals", "a") as file:
            file.write(signal.Signals(number).name + "\\n")
        sys.exit(7)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    pathlib.Path("ready").touch()
    time.sleep(120)
    """
LEAVING = """
    import subprocess
    import sys

    code = "import time; time.sleep(1); import program_of_its_own"
    subprocess.Popen([sys.executable, "-c", code])
    """


def test_second_process_hits_all_and_what_the_first_has_compiled_is_counted(tmp_path):
    home = Home(tmp_path, WITH_LIBRARY)
    code, report = home.report()
    assert code == 0 and report["all_hit"], report
    first, second = report["processes"]
    assert first["compiled"]["AOTAutograd entries"] == 1 and first["compiled"]["FX graph entries"] == 1
    assert first["compiled"]["libraries"] >= 1 and first["compiling_seconds"] > 0 and first["missed"] == 2
    assert second["compiled"] == {} and second["missed"] == 0 and second["hits"] == second["lookups"] == 2


def test_one_process_is_enough_to_see_that_all_is_there(tmp_path):
    home = Home(tmp_path, KERNEL)
    assert home.warm().returncode == 0
    said = home.warm()
    assert said.returncode == 0 and "process 1: 1 of 1 lookup hit; nothing was compiled" in said.stdout, said
    assert "process 2" not in said.stdout


def test_program_that_compiles_something_else_each_time_is_named_with_what_differs(tmp_path):
    home = Home(tmp_path, RESTLESS)
    code, report = home.report("--processes", "2")
    assert code == 1 and not report["all_hit"] and len(report["processes"]) == 2
    missing = report["missing"]
    assert {each["layer"] for each in missing} == {"aot", "fx"} and all("scaled" in each["name"] for each in missing)
    assert any("graph line" in each["why"] and "→" in each["why"] for each in missing), missing
    home.write(RESTLESS_KERNEL)
    said = home.warm()
    assert said.returncode == 1 and "still missing" in said.stdout and "scaled" in said.stdout
    assert "process 3" in said.stdout and "process 4" not in said.stdout


def test_failure_of_the_first_process_is_passed_through_and_said(tmp_path):
    home = Home(tmp_path, KERNEL + "raise SystemExit(3)\n")
    said = home.warm()
    assert said.returncode == 3 and "process 1 ended with status 3" in said.stderr and "process 2" not in said.stdout
    code, report = home.report()
    assert code == 3 and report["status"] == 3 and not report["all_hit"]


def test_death_of_the_second_process_is_passed_through_and_said(tmp_path):
    dying = "import os\n    if os.path.exists('seen'):\n        os.kill(os.getpid(), 9)\n    open('seen', 'w')\n"
    said = Home(tmp_path, KERNEL + dying).warm()
    assert said.returncode == 128 + signal.SIGKILL
    assert "process 2 ended with status 137 (SIGKILL)" in said.stderr, said.stderr


def test_program_that_cannot_be_run_is_said_as_a_shell_does(tmp_path):
    home = Home(tmp_path)
    assert home.warm(command=["no-such-program"]).returncode == 127
    assert home.warm(command=[str(tmp_path / "program.py")]).returncode == 126
    assert home.say("warm").returncode == 2


def test_program_that_looks_nothing_up_is_no_warm_one(tmp_path):
    said = Home(tmp_path, "print('hello')").warm()
    assert said.returncode == 1 and "nothing was looked up" in said.stdout and "hello" in said.stdout
    off = Home(tmp_path, KERNEL).warm(SAFECACHE="0")
    assert off.returncode == 1 and "SAFECACHE=0" in off.stdout


@EXHAUSTIVE
def test_cache_that_is_switched_off_is_named(tmp_path):
    said = Home(tmp_path).warm(TORCHINDUCTOR_FORCE_DISABLE_CACHES="1")
    assert said.returncode == 1 and "TORCHINDUCTOR_FORCE_DISABLE_CACHES" in said.stdout, said.stdout


@EXHAUSTIVE
def test_cache_that_cannot_be_written_is_named(tmp_path):
    home = Home(tmp_path)
    home.cache.parent.mkdir()
    home.cache.write_text("")
    said = home.warm()
    assert said.returncode == 1 and f"{home.cache}" in said.stdout and "File exists" in said.stdout, said.stdout


@EXHAUSTIVE
def test_entry_that_is_not_saved_is_told_apart_from_one_that_differs(tmp_path):
    """By a fault of the file system in all processes: what was compiled before is compiled again."""
    failing = """
        import errno, os
        import safecache
        from safecache.testing import failing
        full = failing("rename", "ENOSPC", os.environ["TORCHINDUCTOR_CACHE_DIR"] + "/aotautograd")
        full.__enter__()
        """
    said = Home(tmp_path, textwrap.dedent(failing) + textwrap.dedent(COMPILED)).warm()
    assert said.returncode == 1 and "process before" in said.stdout and "was not saved" in said.stdout, said.stdout
    assert "process 3" in said.stdout and "never seen" in said.stdout


def test_process_that_outlives_the_program_is_waited_for(tmp_path):
    home = Home(tmp_path, LEAVING)
    (tmp_path / "program_of_its_own.py").write_text(textwrap.dedent(KERNEL))
    code, report = home.report()
    assert code == 0 and report["processes"][0]["missed"] == 1 and report["processes"][1]["hits"] == 1, report


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_reaches_the_program_once_and_no_other_process_is_started(tmp_path, number):
    home = Home(tmp_path, WAITING)
    process = home.start("warm", "--", *home.command)
    while not (tmp_path / "ready").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert (tmp_path / "signals").read_text() == number.name + "\n"
    assert process.returncode == 7 and f"interrupted by {number.name}" in err, err


def test_output_of_the_program_does_not_mix_with_json(tmp_path):
    said = Home(tmp_path, "print('hello')").warm("--json")
    assert json.loads(said.stdout)["all_hit"] is False and "hello" in said.stderr


def test_settings_that_would_change_what_the_program_does_are_lent_to_it_alone(tmp_path):
    code, report = Home(tmp_path, KERNEL).report(SAFECACHE_MUST_HIT="1")
    assert code == 0 and report["all_hit"], report


@EXHAUSTIVE
def test_function_is_warmed_up_by_its_name_and_from_python(tmp_path):
    home = Home(tmp_path)
    (tmp_path / "model.py").write_text(
        textwrap.dedent("""
        import torch

        def scaled(x, by):
            return torch.addmm(x, x, x, alpha=by)

        def main(by=3):
            with torch.no_grad():
                torch.compile(scaled)(torch.ones(3, 3), by)
    """)
    )
    said = home.say("warm", "model:main")
    assert said.returncode == 0 and "process 2: 2 of 2 lookups hit" in said.stdout, said.stdout + said.stderr
    (tmp_path / "program.py").write_text(
        textwrap.dedent("""
        import json, os, sys
        import safecache
        import model

        if __name__ == "__main__":
            found = safecache.warm(model.main, 5)
            again = safecache.warm("model:main", 5)
            failed = safecache.warm(sys.exit, 4)
            assert "_SAFECACHE_RUN" not in os.environ or not os.environ["_SAFECACHE_RUN"].startswith("warm")
            print(json.dumps([found.all_hit, len(found.processes), again.all_hit, len(again.processes), failed.status]))
    """)
    )
    said = home.python("program.py")
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout.splitlines()[-1]) == [True, 2, True, 1, 4]


@EXHAUSTIVE
def test_cache_elsewhere_is_named_by_the_user(tmp_path):
    """Of a program that chooses its cache itself."""
    moved = "    import os\n    os.environ['TORCHINDUCTOR_CACHE_DIR'] = os.path.abspath('own')\n"
    home = Home(tmp_path, moved + COMPILED)
    said = home.warm()
    assert said.returncode == 1 and "--in" in said.stdout, said.stdout
    code, report = home.report("--in", str(tmp_path / "own"))
    assert code == 0 and report["processes"][0]["hits"] == 2, report


@EXHAUSTIVE
def test_library_that_is_built_again_counts_though_all_lookups_hit(tmp_path):
    removing = """
        import glob, os
        kept = []
        for path in glob.glob(os.environ["TORCHINDUCTOR_CACHE_DIR"] + "/*/*.so"):
            kept.append(open(path))  # or its inode would be another's
            os.unlink(path)
        """
    home = Home(tmp_path, textwrap.dedent(removing) + textwrap.dedent(WITH_LIBRARY))
    code, report = home.report()
    assert code == 1 and report["processes"][1]["hits"] == 2, report
    assert any("librar" in each["why"] for each in report["missing"]), report["missing"]


@EXHAUSTIVE
def test_what_is_compiled_has_been_sent_to_the_remote_when_it_ends(tmp_path):
    """Though the program leaves no time for that: its own limit is not kept."""
    pytest.importorskip("obstore")
    store = tmp_path / "store"
    store.mkdir()
    code, report = Home(tmp_path).report(SAFECACHE_REMOTE=f"file://{store}")
    assert code == 0 and [each["unsent"] for each in report["processes"]] == [0, 0], report
    assert len([path for path in store.rglob("*") if path.is_file()]) >= 2


def test_what_only_a_later_process_reaches_is_compiled_by_another_one(tmp_path):
    """As shapes that become dynamic, or what is tuned: a second process that compiles is no end."""
    later = """import os
    if os.path.exists("seen"):
        compile_scaled(3.0)
    open("seen", "w")
    """
    code, report = Home(tmp_path, KERNEL + later).report()
    first, second, third = report["processes"]
    assert code == 0 and second["hits"] == second["missed"] == 1, report
    assert first["missed"] == 1 and third["hits"] == third["lookups"] == 2 and report["missing"] == []
