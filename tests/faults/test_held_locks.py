"""What is attested already takes no lock: whoever holds one, for whatever reason, delays no warm start."""

from __future__ import annotations

import contextlib
import fcntl
import threading
import time

import pytest
from conftest import WARM
from scenes import load_scenes

# Seconds: that is how long a start would take that waits for one lock; the slowest of these takes three on two CPUs.
TIMEOUT = 12


@contextlib.contextmanager
def held(*directories):
    """Each lock there is held by this process."""
    names = [path for directory in directories for path in directory.rglob("*lock") if path.is_file()]
    assert names
    with contextlib.ExitStack() as stack:
        for name in names:
            fcntl.flock(stack.enter_context(name.open("r+")), fcntl.LOCK_EX)
        yield


@pytest.fixture
def run(home):
    home.environment["SAFECACHE_LOCK_TIMEOUT"] = str(TIMEOUT)

    def run(scene, **how):
        start = time.monotonic()
        answer = home.run(scene, **how)
        assert answer.ok and not answer.warnings, answer
        assert time.monotonic() - start < TIMEOUT, answer
        return answer.result

    return run


def test_warm_start_waits_for_no_lock(warm, run):
    with held(warm.cache):
        answer = warm.run(env={"SAFECACHE_LOCK_TIMEOUT": str(TIMEOUT)})
    assert answer.ok and answer.hits == WARM and not answer.warnings, answer


def test_kernel_that_workers_would_compile_waits_for_no_lock(home, run):
    assert run(load_scenes.load_kernel_asynchronously) == 1
    with held(home.cache):
        assert run(load_scenes.load_kernel_asynchronously) == 0


def test_precompiled_header_waits_for_no_lock(home, run):
    where = home.base / "headers"
    run(load_scenes.build_with_header, directory=str(where))
    with held(home.cache, where):
        run(load_scenes.build_with_header, directory=str(where))


@pytest.mark.parametrize("marker", [True, False], ids=["probed", "not probed"])
def test_probe_of_vector_instructions_waits_for_no_lock(home, run, marker):
    found = run(load_scenes.probe_vector_instructions)
    if not marker:
        for path in home.cache.glob("*/*.load_ok"):
            path.unlink()
    with held(home.cache):
        assert run(load_scenes.probe_vector_instructions) == found


def test_warm_probe_of_vector_instructions_seals_nothing(home):
    """Torch before 2.14 leaves no marker beside a probe that it could load: there is none to be sealed."""
    first, second = (home.run(load_scenes.probe_vector_instructions) for _ in range(2))
    assert first.code_stats["code sealed"] and "code sealed" not in second.code_stats, second


def test_threads_that_ask_at_once_build_with_the_same_flags(home, run):
    """Torch changes the flags while it probes, and what another thread reads then stays: all it has built is no hit."""
    (stock, also), (first, second) = (
        run(load_scenes.ask_for_vector_instructions_at_once, stock=stock).values() for stock in (True, False)
    )
    assert first == second and [flags.count("-mavx512bf16") for flags in first] == [1]
    assert stock != also


def test_kernel_of_cutlass_waits_for_no_lock(home, run):
    source = 'extern "C" int answer() { return 42; }\n'
    run(load_scenes.load_cutlass_kernel, source=source)
    with held(home.cache):
        assert run(load_scenes.load_cutlass_kernel, source=source)["commands"] == []


def test_extension_waits_for_no_lock(home, run):
    home.environment["TORCH_EXTENSIONS_DIR"] = str(home.base / "extensions")
    source = 'extern "C" int answer() { return 42; }\n'
    steps = run(load_scenes.load_operators, source=source)["steps"]
    (library,) = (home.base / "extensions").rglob("*.so")
    library.with_name("lock").touch()  # up to torch 2.13 who makes this file has the lock
    with held(home.base / "extensions"):
        assert run(load_scenes.load_operators, source=source)["steps"] == steps


def test_extension_that_is_to_be_built_waits_for_the_lock(home):
    """Or two would build it in one directory at the same time."""
    home.environment["TORCH_EXTENSIONS_DIR"] = str(home.base / "extensions")
    (home.base / "extensions").mkdir()
    lock = home.base / "extensions" / "lock"
    lock.touch()
    source = 'extern "C" int answer() { return 42; }\n'

    with lock.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)

        def release():
            lock.unlink()  # which is how it was released up to torch 2.13
            fcntl.flock(file, fcntl.LOCK_UN)

        threading.Timer(3, release).start()
        answer = home.run(load_scenes.load_operators, source=source)
    assert answer.ok and answer.result["took"] > 1, answer


def test_library_that_is_not_attested_waits_for_the_lock(warm):
    for path in warm.cache.glob("??/*.so"):
        path.write_bytes(path.read_bytes()[:-1])
    with held(warm.cache):
        answer = warm.run(env={"SAFECACHE_WAIT": "lock=1"})
    assert answer.ok and "[lock held]" in answer.warnings[0], answer
    again = warm.run()
    assert again.ok and again.hits == WARM and not any("lock" in text for text in again.warnings), again


def test_lock_file_of_torch_2_13_is_not_waited_for_where_it_is_not_needed(home):
    answer = home.run(load_scenes.wait_for_baton, directory=str(home.base))
    assert answer.ok, answer
    assert answer.result["stock"][::2] == [False, True], "and torch would wait for it"
    acquired, seconds, is_there = answer.result["spared"]
    assert acquired and seconds < 0.4 and is_there, "it stays the other's"
    acquired, seconds, is_there = answer.result["taken"]
    assert acquired and seconds > 0.1 and not is_there, "it was waited for, taken and released"
