"""The real quack-kernels: what its cache and its pool of workers load is verified. It compiles without a GPU."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys

import pytest
from conftest import SOURCE, needs_root

from faults import small_disks
from safecache.testing import damage, isolated

pytest.importorskip("quack", reason="needs quack-kernels")
pytestmark = pytest.mark.xdist_group("quack")

# The key of a kernel is made of its arguments, so that workers find it in a module.
KERNEL = """
import sys
import cutlass, quack.rmsnorm

made = sys.modules["quack.rmsnorm"]._compile_rmsnorm_fwd
arguments = (cutlass.BFloat16, cutlass.BFloat16, None, cutlass.BFloat16, None, None, 1024, False, False, False, False)
"""
PROGRAM = """
import json, sys, time

if __name__ == "__main__":
    if "stock" not in sys.argv:
        import safecache
    from kernel import arguments, made
    from quack.cache import async_compile

    if "pool" in sys.argv:
        with async_compile.pool_scope() as pool:
            while True:
                try:
                    made(*arguments)
                    break
                except async_compile.CompilePending:
                    time.sleep(0.1)
        async_compile.get_shared_executor().shutdown()
    else:
        made(*arguments)
    stats = {} if "stock" in sys.argv else safecache.stats()
    print(json.dumps([made.cache_info()._asdict(), stats]))
"""


@pytest.fixture
def run(tmp_path):
    """Run the program; whether it has hit, safecache's counters, and its stderr."""
    (tmp_path / "kernel.py").write_text(KERNEL)
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = os.environ | isolated(tmp_path) | {"QUACK_CACHE_DIR": str(tmp_path / "quack"), "QUACK_ARCH": "90"}
    environment |= {"CUTE_DSL_ARCH": "sm_90a", "PYTHONPATH": os.pathsep.join([str(SOURCE), *sys.path[1:]])}

    def run_program(*words, **settings):
        command = [sys.executable, "program.py", *words]
        done = subprocess.run(
            command, env=environment | settings, cwd=tmp_path, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr[-3000:]
        info, stats = json.loads(done.stdout.splitlines()[-1])
        return info["hits"] == 1 and info["misses"] == 0, stats, done.stderr

    return run_program


def cached(tmp_path):
    (path,) = (tmp_path / "quack").glob("*/*.o")
    return path


@pytest.mark.parametrize("where", ["here", "pool"])
def test_kernel_is_compiled_once_and_verified(run, tmp_path, where):
    """In a pool by a worker, whose object this process takes: it would compile it again by itself."""
    hit, cold, errors = run(where)
    assert hit is (where == "pool") and "safecache:" not in errors, (cold, errors)
    before = cached(tmp_path).read_bytes()
    hit, warm, errors = run(where)
    assert hit and warm["code verified"] == 1 and "safecache:" not in errors, (warm, errors)
    hit, _, _ = run("stock")
    assert hit and cached(tmp_path).read_bytes() == before


@pytest.mark.parametrize("where", ["here", "pool"])
def test_kernel_that_was_compiled_elsewhere_is_not_compiled_again(run, tmp_path, where):
    elsewhere = {"QUACK_CACHE_DIR": str(tmp_path / "elsewhere"), "SAFECACHE_STRICT": "1,misses=1"}
    with pytest.raises(AssertionError, match="MissError: safecache: no cache has the object "):
        run("here", **elsewhere)
    run("here")
    hit, stats, errors = run(where, **elsewhere)
    assert hit and "safecache:" not in errors, (stats, errors)
    (copy,) = (tmp_path / "cache").glob("??/c*.o")
    copy.write_bytes(b"planted")
    hit, stats, errors = run("here", QUACK_CACHE_DIR=str(tmp_path / "third"))
    assert not hit and "safecache:" not in errors, (stats, errors)


@pytest.mark.parametrize(
    ("how", "reason"),
    [("flipped", "damaged"), ("truncated", "damaged"), ("stock", "unsealed")],
    ids=["flipped", "truncated", "stock"],
)
def test_object_that_does_not_verify_is_replaced(run, tmp_path, how, reason):
    """By the copy in Inductor's cache, where there is one."""
    run("stock" if how == "stock" else "here")
    path = cached(tmp_path)
    content = bytearray(path.read_bytes())
    if how == "flipped":
        content[len(content) // 2] ^= 1
    path.write_bytes(content[: len(content) // 2] if how == "truncated" else content)
    hit, stats, errors = run("here")
    assert hit is (how != "stock") and stats[reason] == 1 and f"[{reason}]" in errors, (stats, errors)
    hit, stats, errors = run("here")
    assert hit and reason not in stats, (stats, errors)


@pytest.mark.parametrize("is_warm", [True, False], ids=["warm", "cold"])
def test_lock_that_is_held_or_no_file_holds_nobody_up(run, tmp_path, is_warm):
    run("here")
    lock = cached(tmp_path).with_suffix(".lock")
    if is_warm:
        with lock.open() as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            hit, _, errors = run("here")
    else:
        lock.unlink()
        os.mkfifo(lock)
        cached(tmp_path).unlink()
        for copy in (tmp_path / "cache").glob("??/c*.o"):
            copy.unlink()
        hit, _, errors = run("here")
    assert hit is is_warm and ("it is no file" in errors) is not is_warm, errors


@needs_root
@pytest.mark.parametrize("fault", ["read-only", "read-only and flipped", "read-only and empty", "full"])
def test_cache_that_cannot_be_written_ends_nothing(run, tmp_path, fault):
    with small_disks.mounted(tmp_path / "quack", "size=20m"):
        if fault in ("read-only", "read-only and flipped"):
            run("here")
        if fault == "read-only and flipped":
            damage(cached(tmp_path), "flipped")
            for copy in (tmp_path / "cache").glob("??/c*.o"):
                copy.unlink()
        (small_disks.fill if fault == "full" else small_disks.read_only)(tmp_path / "quack")
        # What is compiled in another directory is also kept in Inductor's cache.
        for expected in (fault == "read-only", fault in ("read-only", "read-only and empty")):
            hit, stats, errors = run("here")
            assert hit is expected and errors.count("safecache:") <= 2, (hit, stats, errors)
