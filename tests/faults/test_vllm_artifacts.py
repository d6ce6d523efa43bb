"""An artifact of vLLM's that does not load is compiled again: vLLM itself would end, at each start."""

from __future__ import annotations

import pytest
from scenes import model_scenes


@pytest.fixture
def artifact(home):
    """One by standalone_compile, beside the table by which vLLM finds it."""
    path = home.base / "rank_0_0" / "backbone" / "artifact_compile_range_1_256_subgraph_0"
    path.parent.mkdir(parents=True)
    assert home.run(model_scenes.standalone, save=str(path), fmt="binary").ok
    (path.parent / "vllm_compile_cache.py").write_text("{}")
    return path


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


HARMS = [
    pytest.param(flip, id="one-bit"),
    pytest.param(lambda path: path.write_bytes(path.read_bytes()[:1000]), id="truncated"),
    pytest.param(lambda path: path.write_bytes(b""), id="empty"),
    pytest.param(lambda path: path.unlink(), id="gone"),
]


@pytest.mark.parametrize("harm", HARMS)
def test_vllm_compiles_again_what_does_not_load(home, artifact, harm):
    harm(artifact)
    answer = home.run(model_scenes.load_standalone, path=str(artifact), fmt="binary")
    assert not answer.ok and len(answer.warnings) == 1 and artifact.name in answer.warnings[0], answer
    assert not (artifact.parent / "vllm_compile_cache.py").exists()
    assert [kept.name[:-9] for kept in (artifact.parent / ".safecache" / "quarantine").glob("*.py.????????")]


def test_strict_mode_leaves_it_to_a_person(home, artifact):
    flip(artifact)
    answer = home.run(model_scenes.load_standalone, path=str(artifact), fmt="binary", strict=True)
    assert answer.errors[0] == "RefusedArtifactError" and "does not load" in answer.messages[0], answer
    assert (artifact.parent / "vllm_compile_cache.py").exists()


def test_table_stays_where_the_artifact_loads(home, artifact):
    assert home.run(model_scenes.load_standalone, path=str(artifact), fmt="binary").ok
    assert (artifact.parent / "vllm_compile_cache.py").exists()


def test_artifact_that_is_not_vllms_fails_as_ever(home, artifact):
    (artifact.parent / "vllm_compile_cache.py").unlink()
    flip(artifact)
    answer = home.run(model_scenes.load_standalone, path=str(artifact), fmt="binary")
    assert not answer.ok and answer.warnings == [] and not (artifact.parent / ".safecache").exists(), answer
