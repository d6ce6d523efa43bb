"""An artifact of vLLM's that does not load is compiled again: vLLM itself would end, at each start."""

from __future__ import annotations

import shutil

import pytest
from scenes import model_scenes


@pytest.fixture
def artifact(home):
    """One by standalone_compile, where vLLM keeps them."""
    path = home.base / "rank_0_0" / "backbone" / "artifact_compile_range_1_256_subgraph_0"
    path.parent.mkdir(parents=True)
    assert home.run(model_scenes.standalone, save=str(path), fmt="binary").ok
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
    answer = home.run(model_scenes.load_for_vllm, path=str(artifact))
    assert answer.ok and answer.result is None, answer
    assert len(answer.warnings) == 1 and artifact.name in answer.warnings[0], answer


@pytest.mark.parametrize("harm", HARMS[:1])
def test_strict_mode_stops_vllm(home, artifact, harm):
    harm(artifact)
    answer = home.run(model_scenes.load_for_vllm, path=str(artifact), strict=True)
    assert answer.errors[0] == "RefusedArtifactError" and artifact.name in answer.messages[0], answer


def exchange(home, artifact):
    """Two artifacts of one directory, each sealed and whole: which is which, only their records say."""
    other = artifact.with_name("artifact_compile_range_1_256_subgraph_1")
    assert home.run(model_scenes.standalone, save=str(other), fmt="binary").ok
    aside = artifact.with_name("aside")
    artifact.rename(aside)
    other.rename(artifact)
    aside.rename(other)
    assert artifact.read_bytes() != other.read_bytes()
    return other


def test_exchanged_artifacts_are_compiled_again(home, artifact):
    for path in (artifact, exchange(home, artifact)):
        answer = home.run(model_scenes.load_for_vllm, path=str(path))
        assert answer.ok and answer.result is None and path.name in answer.warnings[0], answer


def test_exchanged_artifacts_stop_vllm_in_strict_mode(home, artifact):
    exchange(home, artifact)
    answer = home.run(model_scenes.load_for_vllm, path=str(artifact), strict=True)
    assert answer.errors[0] == "RefusedArtifactError" and artifact.name in answer.messages[0], answer


def test_artifact_without_a_record_is_compiled_again(home, artifact):
    shutil.rmtree(home.base / ".safecache")
    answer = home.run(model_scenes.load_for_vllm, path=str(artifact))
    assert answer.ok and answer.result is None and len(answer.warnings) == 1, answer


def test_moved_directory_is_vllms_still(home, artifact, tmp_path):
    moved = tmp_path / "moved"
    shutil.copytree(home.base / "rank_0_0", moved / "rank_0_0")
    shutil.copytree(home.base / ".safecache", moved / ".safecache")
    answer = home.run(model_scenes.load_for_vllm, path=str(moved / artifact.relative_to(home.base)))
    assert answer.result is True and answer.warnings == [], answer


def test_artifact_that_others_can_replace_is_loaded_from_a_copy(home, artifact):
    artifact.parent.chmod(0o777)
    answer = home.run(model_scenes.load_for_vllm, path=str(artifact))
    assert answer.result is True, answer


def test_want_of_memory_is_no_fault_of_the_artifact(home, artifact):
    answer = home.run(model_scenes.load_for_vllm_without_memory, path=str(artifact))
    assert answer.errors[0] == "OutOfMemoryError" and answer.warnings == [], answer


def test_artifact_that_loads_is_vllms(home, artifact):
    answer = home.run(model_scenes.load_for_vllm, path=str(artifact))
    assert answer.result is True and answer.warnings == [], answer


def test_artifact_that_is_not_vllms_fails_as_ever(home, artifact):
    flip(artifact)
    answer = home.run(model_scenes.load_standalone, path=str(artifact), fmt="binary")
    assert not answer.ok and answer.warnings == [], answer
