"""Through a node-local tier go Triton's kernels, results of autotuning and profiles too, to the shared one and from it."""

from __future__ import annotations

import subprocess

import pytest
from conftest import needs_root
from scenes import artifact_scenes, kernel_scenes, model_scenes, triton_cache_scenes

from faults.test_local_level import Nodes

pytestmark = pytest.mark.default_release

pytest.importorskip("triton")
SCENES = pytest.mark.parametrize("scene", [kernel_scenes.compile_kernel, kernel_scenes.build_module])


@pytest.fixture
def nodes(home):
    return Nodes(home)


def kernel(nodes, name, scene=kernel_scenes.compile_kernel, **how):
    return nodes.run(name, triton_cache_scenes.in_inductors_cache, **how, of=scene)


@SCENES
def test_kernel_that_one_node_compiles_another_has_and_keeps(nodes, scene):
    cold = kernel(nodes, "a", scene)
    assert cold.ok and cold.result["compiled"] and not cold.warnings, cold
    warm = kernel(nodes, "b", scene)
    assert warm.ok and not warm.result["compiled"] and not warm.warnings, warm
    nodes.shared.rename(nodes.home.base / "unmounted")
    again = kernel(nodes, "b", scene, strict=True)
    assert again.ok and not again.result["compiled"] and not nodes.shared.exists(), again


@SCENES
def test_stock_triton_reads_the_shared_level(nodes, scene):
    assert kernel(nodes, "a", scene).ok
    stock = nodes.home.run(triton_cache_scenes.in_inductors_cache, stock=True, of=scene)
    assert stock.ok and not stock.result["compiled"], stock
    assert all(path.startswith(f"{nodes.shared}/") for path in stock.result.get("files", ())), stock


def test_kernel_that_is_damaged_in_the_shared_level_is_made_anew_there_too(nodes):
    assert kernel(nodes, "a").ok
    (cubin,) = nodes.shared.glob("triton/0/*/*.cubin")
    cubin.write_bytes(b"damaged")
    answer = kernel(nodes, "b")
    assert answer.ok and answer.result["compiled"] and len(answer.warnings) == 1, answer
    healed = kernel(nodes, "c", strict=True)
    assert healed.ok and not healed.result["compiled"], healed


@needs_root
def test_group_of_which_a_file_was_not_sent_is_not_listed_in_the_shared_level(nodes):
    """Its last file meets a mount in its place, which cannot be set aside."""
    assert kernel(nodes, "a").ok
    (cubin,) = nodes.shared.glob("triton/0/*/*.cubin")
    (group,) = cubin.parent.glob("__grp__*")
    group.unlink()
    cubin.unlink()
    cubin.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", str(cubin)], check=True)
    try:
        answer = kernel(nodes, "b")
        assert answer.ok and answer.result["compiled"] and len(answer.warnings) == 1, answer
        assert not group.exists()
        assert not kernel(nodes, "b").result["compiled"]
    finally:
        subprocess.run(["umount", str(cubin)], check=True)


def test_directory_in_the_place_of_a_file_in_the_shared_level_is_set_aside(nodes):
    assert kernel(nodes, "a").ok
    (cubin,) = nodes.shared.glob("triton/0/*/*.cubin")
    (group,) = cubin.parent.glob("__grp__*")
    group.unlink()
    cubin.unlink()
    (cubin / "in the way").mkdir(parents=True)
    answer = kernel(nodes, "b")
    (warning,) = answer.warnings
    assert answer.ok and answer.result["compiled"] and "a directory was in the place of" in warning, answer
    assert group.exists() and not kernel(nodes, "c").result["compiled"]


@SCENES
def test_explicit_cache_of_triton_is_left_alone(nodes, scene):
    assert nodes.run("a", scene).ok
    assert not nodes.shared.exists() or not list(nodes.shared.glob("triton/**/*.*"))
    assert list((nodes.home.base / "triton").glob("*/*")) and not nodes.run("b", scene).result["compiled"]


def test_result_of_autotuning_is_used_by_the_next_node(nodes):
    def filename(name):
        return f"{nodes.run(name, model_scenes.cache_in_use).result}/ab/cab.py"

    saved = nodes.run("a", artifact_scenes.save_tuning, filename=filename("a"), size=7, coordesc=True)
    assert saved.ok and not saved.warnings, saved
    for _ in ("from the shared tier", "from its own"):
        read = nodes.run("b", artifact_scenes.read_tuning, filename=filename("b"), strict=True)
        assert read.ok and read.result["size"] == 7, read
        if nodes.shared.exists():
            stock = nodes.home.run(artifact_scenes.read_tuning, filename=f"{nodes.shared}/ab/cab.py", stock=True)
            assert stock.ok and stock.result["size"] == 7, stock
            nodes.shared.rename(nodes.home.base / "unmounted")


@pytest.mark.parametrize(
    ("save", "load"),
    [
        (artifact_scenes.save_profile, artifact_scenes.load_profile),
        (artifact_scenes.save_precompile, artifact_scenes.load_precompile),
    ],
    ids=["profile", "precompile"],
)
def test_what_dynamo_keeps_is_used_by_the_next_node(nodes, save, load):
    saved = nodes.run("a", save, path="")
    assert saved.ok and not saved.warnings, saved
    assert list(nodes.shared.glob("dynamo/**/*")), "it is there"
    first = nodes.run("b", load, path="")
    assert first.ok and first.result is True and not first.warnings, first
    nodes.shared.rename(nodes.home.base / "unmounted")
    again = nodes.run("b", load, path="", strict=True)
    assert again.ok and again.result is True, again
