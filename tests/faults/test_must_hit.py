"""SAFECACHE_MUST_HIT: a miss is an error that names it, before anything is compiled; a warm start is none the wiser."""

from __future__ import annotations

import shutil

import pytest
from scenes import kernel_scenes, lookup_scenes, model_scenes
from scenes.ir import SEVEN

pytestmark = pytest.mark.default_release
MUST_HIT = {"SAFECACHE_MUST_HIT": "1"}


def files(home):
    return sorted(path for path in home.cache.rglob("*.py")) if home.cache.exists() else []


def missed(answer):
    """The text of the error that has left torch."""
    assert answer.errors[0] in ("BackendCompilerFailed", "InductorError") and "MissError" in answer.errors, answer
    return answer.messages[answer.errors.index("MissError")]


def test_cold_start_is_an_error_that_names_cache_function_reason_and_key(home):
    text = missed(home.run(env=MUST_HIT))
    assert (
        "AOTAutograd cache" in text
        and "for scenes.models.model [" in text
        and "[never seen]" in text
        and "(key a" in text
    )
    assert files(home) == []


def test_warm_start_is_no_error(warm):
    answer = warm.run(env=MUST_HIT)
    assert answer.ok and answer.hits == (1, 2) and not answer.warnings


def test_graph_that_is_gone_is_an_error_though_torch_takes_it_for_a_bypass(warm):
    for entry in warm.fx_entries:
        shutil.rmtree(entry.parent)
    answer = warm.run(lookup_scenes.looked_up, env=MUST_HIT)
    assert "FX graph cache" in answer.result["error"], answer
    # It is not looked up a second time, after the tracing.
    assert answer.result["lookups"] == {"aot miss: missing entry": 1, "fx miss: evicted": 1}


def test_graph_that_is_gone_is_an_error_where_the_other_cache_is_off(warm):
    for entry in warm.fx_entries:
        shutil.rmtree(entry.parent)
    answer = warm.run(lookup_scenes.compile_without_caches, functorch={"enable_autograd_cache": False}, env=MUST_HIT)
    assert "FX graph cache" in missed(answer)


def test_caches_that_are_off_are_an_error_where_a_compile_would_follow(warm):
    inductor = {"force_disable_caches": True}
    answer = warm.run(lookup_scenes.compile_without_caches, inductor=inductor, env=MUST_HIT)
    assert "[disabled]: TORCHINDUCTOR_FORCE_DISABLE_CACHES" in missed(answer)
    off = {"enable_autograd_cache": False}
    assert warm.run(lookup_scenes.compile_without_caches, functorch=off, env=MUST_HIT).ok


def test_what_torch_never_caches_is_no_error(warm):
    assert warm.run(lookup_scenes.compile_with_a_pass, env=MUST_HIT).ok


@pytest.mark.parametrize("functorch", [{}, {"enable_autograd_cache": False}], ids=["", "no AOTAutograd cache"])
def test_miss_is_not_suppressed(home, functorch):
    """SGLang has dynamo log what a compile raises, and run the function eagerly."""
    answer = home.run(model_scenes.compile_suppressing, env=MUST_HIT, **functorch)
    assert answer.errors[0] == "MissError" and "[never seen]" in answer.messages[0], answer
    assert files(home) == []


def test_graph_that_is_gone_is_not_suppressed(warm):
    for entry in warm.fx_entries:
        shutil.rmtree(entry.parent)
    answer = warm.run(model_scenes.compile_suppressing, env=MUST_HIT)
    assert answer.errors[0] == "MissError" and "FX graph cache" in answer.messages[0], answer


def test_warm_start_that_suppresses_errors_is_no_error(warm):
    answer = warm.run(model_scenes.compile_suppressing, env=MUST_HIT)
    assert answer.ok and answer.hits == (1, 2) and not answer.warnings, answer


def test_strict_mode_keeps_its_own_error(warm):
    warm.aot_entries[0].write_bytes(warm.aot_entries[0].read_bytes()[:-200])
    answer = warm.run(env=MUST_HIT, strict=True)
    assert answer.errors[:2] == ["BackendCompilerFailed", "EntryRefusedError"], answer


def test_kernel_that_misses_in_a_compile_worker_is_the_same_error(home):
    """Torch makes a text of what a worker raises, and what reads the caches would not know it for ours."""
    pytest.importorskip("triton")
    answer = home.run(kernel_scenes.compile_kernel_in_a_worker, env=MUST_HIT)
    assert answer.errors == ["MissError"] and "Triton cache" in answer.messages[0], answer
    assert home.run(kernel_scenes.compile_kernel).ok
    assert not home.run(kernel_scenes.compile_kernel_in_a_worker, env=MUST_HIT).result["compiled"]


def test_kernel_that_misses_is_an_error_before_it_is_compiled(home):
    pytest.importorskip("triton")
    answer = home.run(kernel_scenes.compile_kernel, env=MUST_HIT)
    assert answer.errors == ["MissError"], answer
    assert "Triton cache" in answer.messages[0] and "for scenes.triton_kernels.triton_poi_scale [" in answer.messages[0]
    path = home.base / "seven.ttir"
    path.write_text(SEVEN)
    for isolate in "01":
        env = MUST_HIT | {"SAFECACHE_ISOLATE": isolate}
        answer = home.run(kernel_scenes.compile_ir, path=str(path), env=env)
        assert answer.errors == ["MissError"] and "for @seven [" in answer.messages[0], answer
        assert not list(home.base.rglob("@seven*")), "nothing was compiled"
    assert home.run(kernel_scenes.compile_kernel).ok and home.run(kernel_scenes.compile_kernel, env=MUST_HIT).ok
