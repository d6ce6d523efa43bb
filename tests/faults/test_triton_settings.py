"""Triton's cache under each of Triton's settings, where it was copied to, and above layers that are only read."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess

import pytest
from conftest import needs_root
from helpers.key_cases import PRIVATE, PUBLIC, revoked
from scenes import kernel_scenes, triton_cache_scenes

from faults.hostile import triton_files as files
from safecache.signing import key_directory, key_files

pytest.importorskip("triton")

WHO = pytest.mark.parametrize("who", ["stock", "safecache"])


@pytest.fixture(scope="module")
def template(new_home):
    home = new_home()
    assert home.run(kernel_scenes.compile_kernel).ok
    return home


@pytest.fixture
def compiled(home, template):
    """A home with a kernel in Triton's cache, and the key: copied, so the list names files of another directory."""
    shutil.copytree(template.base, home.base, dirs_exist_ok=True)
    return home


def elsewhere(home):
    """Its environment with an empty cache."""
    return {"TRITON_CACHE_DIR": str(home.base / "other")}


@pytest.mark.parametrize("env", [{}, {"TRITON_STORE_BINARY_ONLY": "1"}], ids=["all", "binary-only"])
def test_kernel_is_compiled_once_for_us_and_for_stock(home, env):
    cold, warm = home.run(kernel_scenes.compile_kernel, env=env), home.run(kernel_scenes.compile_kernel, env=env)
    stock = home.run(kernel_scenes.compile_kernel, env=env, stock=True)
    assert [cold.result["compiled"], warm.result["compiled"], stock.result["compiled"]] == [True, False, False]
    assert cold.result["cubin"] == warm.result["cubin"] == stock.result["cubin"]
    assert not cold.warnings and not warm.warnings
    stages = {path.suffix for path in files(home, "triton_*")}
    assert stages >= {".cubin", ".json"} and (".ptx" in stages) is not bool(env)


def test_kernel_that_is_always_compiled_replaces_its_group(compiled):
    env = {"TRITON_ALWAYS_COMPILE": "1"}
    assert all(compiled.run(kernel_scenes.compile_kernel, env=env).result["compiled"] for _ in range(2))
    for stock in (False, True):
        answer = compiled.run(kernel_scenes.compile_kernel, stock=stock)
        assert not answer.result["compiled"] and not answer.warnings, answer


def test_directory_that_changes_at_run_time_is_followed(home):
    second = str(home.base / "second")
    assert home.run(triton_cache_scenes.compile_in_two_caches, second=second).result == [True, True, False, False]
    assert not home.run(kernel_scenes.compile_kernel, env={"TRITON_CACHE_DIR": second}).result["compiled"]


def test_overriding_text_is_taken_and_dumping_leaves_no_records(home):
    dump = home.base / "dump"
    env = {"TRITON_KERNEL_DUMP": "1", "TRITON_DUMP_DIR": str(dump)}
    assert home.run(kernel_scenes.compile_kernel, env=env).ok
    (text,) = dump.glob("*/*.ptx")
    assert not (dump / ".safecache").exists()
    text.write_text("// overridden\n" + text.read_text())
    env = {"TRITON_KERNEL_OVERRIDE": "1", "TRITON_OVERRIDE_DIR": str(dump), "TRITON_ALWAYS_COMPILE": "1"}
    answer = home.run(triton_cache_scenes.text_of, extension="ptx", env=env)
    assert answer.ok and answer.result.startswith("// overridden") and not answer.warnings, answer


@WHO
def test_dump_that_cannot_be_written_is_no_failed_compile(home, who):
    (home.base / "dump").write_text("in the way")
    env = {"TRITON_KERNEL_DUMP": "1", "TRITON_DUMP_DIR": str(home.base / "dump")}
    answer = home.run(kernel_scenes.compile_kernel, env=env, stock=who == "stock")
    assert answer.ok is (who == "safecache"), answer
    if who == "safecache":
        assert len(answer.warnings) == 1 and "TRITON_DUMP_DIR" in answer.warnings[0], answer
        assert (home.base / "dump").read_text() == "in the way"
        assert not home.run(kernel_scenes.compile_kernel).result["compiled"]


@pytest.mark.parametrize("variable", ["TRITON_DUMP_DIR", "TRITON_OVERRIDE_DIR"])
def test_cache_that_is_named_as_people_s_directory_too_is_still_verified(compiled, variable):
    files(compiled, "*.cubin")[0].write_bytes(b"evil")
    answer = compiled.run(kernel_scenes.compile_kernel, env={variable: str(compiled.base / "triton")})
    assert answer.ok and answer.result["compiled"] and answer.result["cubin"] != b"evil".hex(), answer


def test_autotuning_results_are_kept_and_damaged_ones_made_anew(home):
    assert [
        home.run(triton_cache_scenes.tune).result,
        home.run(triton_cache_scenes.tune).result,
        home.run(triton_cache_scenes.tune, stock=True).result,
    ] == [
        True,
        False,
        False,
    ]
    (kept,) = files(home, "*.autotune.json")
    kept.write_text(kept.read_text()[:20])
    assert home.run(triton_cache_scenes.tune, stock=True).error == "JSONDecodeError"
    answer = home.run(triton_cache_scenes.tune)
    assert answer.ok and answer.result and len(answer.warnings) == 1, answer
    assert not home.run(triton_cache_scenes.tune).result


@WHO
def test_autotuning_results_that_cannot_be_kept_are_no_failed_tuning(home, who):
    home.environment["TRITON_CACHE_DIR"] = "/proc/nope"
    answer = home.run(triton_cache_scenes.tune, stock=who == "stock")
    assert answer.ok is (who == "safecache") and len(answer.warnings) == (who == "safecache"), answer


@WHO
def test_cache_that_was_copied_hits(compiled, template, who):
    shutil.move(template.base / "triton", template.base / "hidden")  # else stock reads the files of the original
    try:
        answer = compiled.run(kernel_scenes.compile_kernel, stock=who == "stock")
    finally:
        shutil.move(template.base / "hidden", template.base / "triton")
    assert answer.ok and answer.result["compiled"] is (who == "stock") and not answer.warnings, answer


def as_triton_has_it(home):
    return home.base / "triton"


def as_inductor_has_it(home):
    layer = home.base / "layer"
    (layer / "triton").mkdir(parents=True)
    shutil.move(home.base / "triton", layer / "triton" / "1")
    return layer


LAYOUTS = pytest.mark.parametrize("layout", [as_triton_has_it, as_inductor_has_it])


@LAYOUTS
def test_kernel_of_a_layer_is_taken_and_kept_in_the_cache(compiled, layout):
    layer = layout(compiled)
    before = sorted(layer.rglob("*"))
    answer = compiled.run(kernel_scenes.compile_kernel, env=elsewhere(compiled) | {"SAFECACHE_LOWER": str(layer)})
    assert answer.ok and not answer.result["compiled"] and not answer.warnings, answer
    assert sorted(layer.rglob("*")) == before, "a layer is never written"
    shutil.rmtree(layer)
    for stock in (False, True):
        answer = compiled.run(kernel_scenes.compile_kernel, env=elsewhere(compiled), stock=stock)
        assert answer.ok and not answer.result["compiled"] and not answer.warnings, answer


def test_kernel_of_a_layer_is_kept_under_the_key_that_sealed_it(home):
    """Else what a key has sealed would go on being used after its revocation."""
    key_files.save(str(home.base / "farm"), PRIVATE)
    assert home.run(kernel_scenes.compile_kernel, env={"SAFECACHE_KEY_FILE": str(home.base / "farm")}).ok
    layer = as_triton_has_it(home)
    key_directory.add(str(home.keys / "keys"), PUBLIC)
    env = elsewhere(home) | {"SAFECACHE_LOWER": str(layer)}
    answer = home.run(kernel_scenes.compile_kernel, env=env)
    assert answer.ok and not answer.result["compiled"] and not answer.warnings, answer
    shutil.rmtree(layer)
    assert not home.run(kernel_scenes.compile_kernel, env=env).result["compiled"], "it was copied"
    key_directory.add(str(home.keys / "keys"), revoked(PUBLIC))
    answer = home.run(kernel_scenes.compile_kernel, env=env)
    assert answer.ok and answer.result["compiled"] and answer.stats["revoked key"] >= 1, answer


@needs_root
@LAYOUTS
def test_kernel_and_module_of_a_layer_are_taken_where_nothing_can_be_written(compiled, layout):
    assert compiled.run(kernel_scenes.build_module).ok
    layer = layout(compiled)
    subprocess.run(["mount", "--bind", str(layer), str(layer)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(layer)], check=True)
        for scene in (kernel_scenes.compile_kernel, kernel_scenes.build_module):
            answer = compiled.run(scene, env={"TRITON_CACHE_DIR": "/proc/nope", "SAFECACHE_LOWER": str(layer)})
            assert answer.ok and not answer.result["compiled"] and not answer.warnings, answer
    finally:
        subprocess.run(["umount", str(layer)], check=True)


def test_damaged_kernel_of_a_layer_is_said_left_there_and_compiled(compiled):
    layer = as_triton_has_it(compiled)
    (damaged,) = files(compiled, "*.cubin")
    damaged.write_bytes(b"damaged")
    env = elsewhere(compiled) | {"SAFECACHE_LOWER": str(layer)}
    answer = compiled.run(kernel_scenes.compile_kernel, env=env)
    assert answer.ok and answer.result["compiled"] and len(answer.warnings) == 1, answer
    assert str(damaged) in answer.warnings[0] and damaged.read_bytes() == b"damaged"
    assert not compiled.run(kernel_scenes.compile_kernel, env=env).result["compiled"]


def test_kernel_of_a_layer_that_nobody_sealed_is_not_taken(compiled):
    shutil.rmtree(compiled.base / "triton" / ".safecache")
    env = elsewhere(compiled) | {"SAFECACHE_LOWER": str(compiled.base / "triton")}
    answer = compiled.run(kernel_scenes.compile_kernel, env=env)
    assert answer.ok and answer.result["compiled"] and len(answer.warnings) == 1, answer


def test_group_names_only_files_that_lie_beside_it(compiled):
    """What Triton has read from a layer, and does not write anew, is no part of the new group."""
    env = elsewhere(compiled) | {"SAFECACHE_LOWER": str(compiled.base / "triton")}
    (compiled.base / "other").write_text("in the way")  # so that nothing is copied
    with contextlib.suppress(FileNotFoundError):
        assert not compiled.run(kernel_scenes.compile_kernel, env=env).result["compiled"]
    (compiled.base / "other").unlink()
    env |= {"TRITON_ALWAYS_COMPILE": "1", "TRITON_STORE_BINARY_ONLY": "1"}
    assert compiled.run(kernel_scenes.compile_kernel, env=env).ok
    (group,) = (compiled.base / "other").glob("*/__grp__*")
    listed = json.loads(group.read_text())["child_paths"]
    assert listed and all(path == str(group.parent / name) for name, path in listed.items())
    assert all((group.parent / name).exists() for name in listed)
