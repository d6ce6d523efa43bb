"""The real CuTe DSL: the IR that it keeps is verified before it is compiled. It runs on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from conftest import SOURCE, needs_root

from faults import small_disks
from safecache.testing import damage, isolated

pytest.importorskip("cutlass", reason="needs nvidia-cutlass-dsl")
pytestmark = pytest.mark.xdist_group("cute_dsl")

PROGRAM = """
import json, sys

if "stock" not in sys.argv:
    import safecache
import cutlass
import cutlass.cute as cute

@cute.jit
def tell(a: cutlass.Int32):
    cute.printf("it is %d", a * FACTOR)

tell(cutlass.Int32(3))
print(json.dumps({} if "stock" in sys.argv else safecache.stats()))
"""


class Scene:
    """A function whose IR CuTe DSL keeps, and the directory where it does."""

    def __init__(self, base):
        self.base, self.cache = base, base / "ir"
        self.environment = os.environ | isolated(base) | {"CUTE_DSL_CACHE_DIR": str(self.cache)}
        self.environment |= {"CUTE_DSL_ARCH": "sm_90a", "PYTHONPATH": os.pathsep.join([str(SOURCE), *sys.path[1:]])}

    def run(self, *words, factor=7, **settings):
        """What the function says, safecache's counters, and stderr."""
        (self.base / "program.py").write_text(PROGRAM.replace("FACTOR", str(factor)))
        done = subprocess.run(
            [sys.executable, "program.py", *words],
            env=self.environment | settings,
            cwd=self.base,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        *said, stats = done.stdout.splitlines()
        return said, json.loads(stats), done.stderr

    @property
    def kept(self):
        return list(self.cache.glob("*.mlir"))


@pytest.fixture
def scene(tmp_path):
    return Scene(tmp_path)


RIGHT = ["it is 21"]


def test_ir_is_kept_once_and_verified(scene):
    said, cold, errors = scene.run()
    assert said == RIGHT and cold["code sealed"] == 1 and "safecache:" not in errors, (said, cold, errors)
    (path,) = scene.kept
    before = path.stat().st_mtime_ns
    said, warm, errors = scene.run()
    assert said == RIGHT and warm["code verified"] == 1 and "safecache:" not in errors, (said, warm, errors)
    assert scene.run("stock")[0] == RIGHT and path.stat().st_mtime_ns == before


def put_others_ir(scene, how):
    """In place of the function's, IR that says another number, with the checksum of its own."""
    scene.run("stock", factor=8)
    (other,) = scene.kept
    content = other.read_bytes()
    other.unlink()
    scene.run(*(["stock"] if how == "stock" else []))
    (path,) = scene.kept
    path.write_bytes(content)
    return path


def test_on_stock_the_ir_of_another_function_runs(scene):
    put_others_ir(scene, "stock")
    assert scene.run("stock")[0] == ["it is 24"]


@pytest.mark.parametrize("how", ["stock", "ours"])
def test_ir_of_another_function_is_not_compiled(scene, how):
    path = put_others_ir(scene, how)
    said, stats, errors = scene.run()
    assert said == RIGHT and errors.count("safecache:") == 1, (said, stats, errors)
    assert stats["unsealed" if how == "stock" else "damaged"] == 1, stats
    said, stats, errors = scene.run()
    assert said == RIGHT and stats["code verified"] == 1 and "safecache:" not in errors, (said, stats, errors)
    assert path.exists()


def test_ir_of_another_function_ends_the_program_in_strict_mode(scene):
    put_others_ir(scene, "ours")
    with pytest.raises(AssertionError, match="EntryRefusedError"):
        scene.run(SAFECACHE_STRICT="1")


@pytest.mark.parametrize("how", ["truncated", "empty", "flipped"])
def test_damaged_ir_is_compiled_anew(scene, how):
    scene.run()
    damage(scene.kept[0], how)
    said, stats, errors = scene.run()
    assert said == RIGHT and errors.count("safecache:") == 1, (said, stats, errors)
    said, stats, errors = scene.run()
    assert said == RIGHT and stats["code verified"] == 1 and "safecache:" not in errors, (said, stats, errors)


def test_directory_where_others_can_write_is_left_alone(scene):
    path = put_others_ir(scene, "ours")
    scene.cache.chmod(0o777)
    before = path.stat().st_mtime_ns
    said, stats, errors = scene.run()
    assert said == RIGHT and path.stat().st_mtime_ns == before, (said, stats, errors)


@needs_root
@pytest.mark.parametrize("fault", ["read-only", "read-only and damaged", "read-only and empty", "full"])
def test_directory_that_cannot_be_written_ends_nothing(scene, fault):
    with small_disks.mounted(scene.cache, "size=1m"):
        if fault in ("read-only", "read-only and damaged"):
            scene.run()
        if fault == "read-only and damaged":
            damage(scene.kept[0], "flipped")
        (small_disks.fill if fault == "full" else small_disks.read_only)(scene.cache)
        for _ in range(2):
            said, stats, errors = scene.run()
            assert said == RIGHT and errors.count("safecache:") <= 2, (said, stats, errors)
            assert "Traceback" not in errors and (fault != "read-only" or stats["code verified"] == 1), errors
