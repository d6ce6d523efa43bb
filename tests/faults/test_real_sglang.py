"""A real engine of SGLang: what its scheduler loads is verified, strict mode stops it, and a fault costs a compile.

SAFECACHE_TEST_SGLANG_PYTHON names the Python of an environment with SGLang 0.5.23 and safecache in it. What SGLang needs of
CUDA can be left out: ``uv pip install sglang==0.5.23 --override FILE``, where FILE has a line like
``sglang-kernel ; sys_platform == 'never'`` for each of sglang-kernel, flash-attn-4, flashinfer-python, humming-kernels,
kernels, nvidia-cutlass-dsl, nvidia-mathdx, nvshmem4py-cu13, quack-kernels, sgl-deep-ep, sgl-deep-gemm, sgl-flash-mla, tilelang
and tml-renderers; then ``uv pip install dill``. Takes about ten minutes on two cores.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from faults.test_real_vllm import LLAMA
from safecache.history import run_summary

PYTHON = os.environ.get("SAFECACHE_TEST_SGLANG_PYTHON")
pytestmark = [
    pytest.mark.skipif(not PYTHON, reason="SAFECACHE_TEST_SGLANG_PYTHON names no Python of an environment with SGLang"),
    pytest.mark.timeout(1200),
]
ENGINE = Path(__file__).parent / "sglang_engine.py"
SETTINGS = {"DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "SAFECACHE": "1", "SGLANG_USE_CPU_ENGINE": "1"}


class Server:
    """The caches of one, and lives of its engine."""

    def __init__(self, base, model):
        self.base, self.model = base, model
        self.cache = base / "sglang" / "inductor"

    def run(self, full="", *, suppress=False, **environment):
        """The process, its tokens, our counters in its scheduler, and our lines; no tokens if it has not served."""
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        own = {"HOME": str(self.base), "SGLANG_CACHE_DIR": str(self.base / "sglang"), "TMPDIR": str(self.base / "tmp")}
        stats = self.base / "stats"
        stats.unlink(missing_ok=True)
        (self.base / "tmp").mkdir(exist_ok=True)
        how = json.dumps({"stats": str(stats), "full": str(full), "suppress": suppress})
        environment = kept | own | SETTINGS | environment
        command = [PYTHON, ENGINE, self.model, how]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
        tokens = next((json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"tokens"')), None)
        lines = [line for line in (done.stdout + done.stderr).splitlines() if "safecache: " in line]
        return done, tokens, json.loads(stats.read_text()) if stats.exists() else None, lines


@pytest.fixture(scope="module")
def warmed(tmp_path_factory):
    """A server that has compiled, and its tokens."""
    model = tmp_path_factory.mktemp("model")
    (model / "config.json").write_text(json.dumps(LLAMA))
    server = Server(tmp_path_factory.mktemp("warmed"), model)
    done, tokens, stats, lines = server.run()
    assert tokens is not None and not lines, done.stderr[-3000:]
    assert stats["aot miss: never seen"] > 0 and stats["saved"] == stats["sealed"], stats
    return server, tokens


@pytest.fixture
def server(warmed, tmp_path):
    """A copy of it."""
    shutil.copytree(warmed[0].base, tmp_path / "copy", ignore=shutil.ignore_patterns("tmp"))  # it has sockets
    return Server(tmp_path / "copy", warmed[0].model), warmed[1]


def damage(server):
    """A byte of each of AOTAutograd's entries."""
    for path in server.cache.glob("aotautograd/*/*"):
        content = bytearray(path.read_bytes())
        content[100] ^= 1
        path.write_bytes(content)


def test_warm_start_hits(server):
    done, tokens, stats, lines = server[0].run()
    assert tokens == server[1] and not lines, done.stderr[-3000:]
    assert stats["aot hit"] > 0 and not [name for name in stats if " miss" in name or " bypass" in name], stats
    # It was killed, by SIGKILL.
    told = run_summary.summarise(run_summary.read_unverified(str(server[0].cache)), run_summary.LAST)
    assert told.counts["aot hit"] == stats["aot hit"], told


def test_damaged_entries_are_compiled_again(server):
    damage(server[0])
    done, tokens, stats, lines = server[0].run()
    assert tokens == server[1] and stats["damaged"] > 0, done.stderr[-3000:]
    assert len(lines) == 1 and "[damaged]" in lines[0], lines


@pytest.mark.parametrize("suppress", [False, True], ids=["", "suppress-errors"])
def test_damaged_entry_stops_a_strict_server(server, suppress):
    damage(server[0])
    done, tokens, _, _ = server[0].run(suppress=suppress, SAFECACHE_STRICT="1")
    assert tokens is None and done.returncode != 0
    assert "safecache: refused AOTAutograd entry" in done.stderr and "[damaged]" in done.stderr, done.stderr[-3000:]


@pytest.mark.parametrize("suppress", [False, True], ids=["", "suppress-errors"])
def test_miss_stops_a_server_that_must_hit(server, suppress):
    shutil.rmtree(server[0].cache / "aotautograd")
    done, tokens, _, _ = server[0].run(suppress=suppress, SAFECACHE_MUST_HIT="1")
    assert tokens is None and done.returncode != 0
    assert "[evicted]" in done.stderr and "SAFECACHE_STRICT=misses=1 forbids compiling" in done.stderr, done.stderr[
        -3000:
    ]


def test_full_disk_ends_no_engine(warmed, tmp_path):
    server = Server(tmp_path, warmed[0].model)
    done, tokens, _, lines = server.run(full=server.cache)
    assert tokens == warmed[1], done.stderr[-3000:]
    warned = [line for line in lines if "the journal" not in line]
    assert len(warned) == 1 and "No space left on device" in warned[0], lines
