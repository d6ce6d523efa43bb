"""Where torch is not what the table says, a hook stands down by name, and torch works as in stock."""

from __future__ import annotations

import pytest

SAVE_GRAPH = "torch._inductor.codecache.FxGraphCache._save_graph"
CANDIDATES = "torch._inductor.codecache.GuardedCache.iterate_over_candidates"
STAND_DOWNS = {
    "unknown": "unknown signature: (key, compiled_graph, something_new), known are "
    "'key, compiled_graph, example_inputs, local, remote_cache'",
    "missing": "not found: ",
}


@pytest.mark.parametrize("signature", STAND_DOWNS)
def test_function_that_changed_upstream_makes_only_its_hook_stand_down(fake, signature):
    said = fake(
        f"""
        import safecache, torch
        import_all()
        found = states()
        assert found.pop({SAVE_GRAPH!r}) == "standing down"
        assert set(found.values()) == {{"active"}}, found
        assert list(reasons()) == [{SAVE_GRAPH!r}]
        print(reasons()[{SAVE_GRAPH!r}])
        """,
        loud=True,
        FAKE_TORCH_SIGNATURE=signature,
    )
    assert said.lines[0].startswith(STAND_DOWNS[signature])
    (warning,) = said.warnings
    assert SAVE_GRAPH in warning and STAND_DOWNS[signature] in warning and "hook inactive" in warning


def test_function_whose_hook_stands_down_is_the_stock_object(fake):
    fake(
        """
        import_all()
        cache = sys.modules[CODECACHE].FxGraphCache
        stock = vars(cache)["_save_graph"]
        import safecache, torch
        assert vars(cache)["_save_graph"] is stock
        torch.failures["_save_graph"] = ValueError("no")
        try:
            cache._save_graph("key", None, "new")
        except ValueError:
            safecache.deactivate()
            assert vars(cache)["_save_graph"] is stock and all_are("inactive"), states()
        else:
            raise AssertionError("not stock")
        """,
        loud=True,
        FAKE_TORCH_SIGNATURE="unknown",
    )


def test_standing_down_is_said_once_and_counted(fake):
    said = fake(
        """
        import safecache
        import_all()
        for _ in range(3):
            safecache.deactivate()
            safecache.activate()
        print(safecache.stats())
        """,
        loud=True,
        FAKE_TORCH_SIGNATURE="unknown",
    )
    assert len(said.warnings) == 1, said.errors
    assert said.lines == ["{'hook inactive': 4}"]


def test_hook_is_put_on_once_the_function_is_what_we_know(fake):
    fake(
        """
        import os
        import safecache
        import_all()
        assert not all_are("active")
        del os.environ["FAKE_TORCH_SIGNATURE"]
        importlib.reload(sys.modules[CODECACHE])
        assert all_are("active") and not reasons(), reasons()
        """,
        loud=True,
        FAKE_TORCH_SIGNATURE="missing",
    )


@pytest.mark.parametrize("version", ["2.16.0", "2.10.9", "2.16.0a0+git", "unreleased"])
def test_every_hook_stands_down_on_an_unknown_torch(fake, version):
    said = fake(
        """
        import_all()
        before = snapshot()
        import safecache
        assert all_are("standing down"), states()
        assert differences(before, snapshot()) == []
        assert safecache.is_active()
        for reason in set(reasons().values()):
            print(reason)
        """,
        loud=True,
        FAKE_TORCH_VERSION=version,
    )
    assert said.lines == [f"unknown torch version: {version}, known are 2.11 to before 2.16"]
    assert len(said.warnings) == 1 and version in said.warnings[0], said.errors


@pytest.mark.parametrize("version", ["2.11.0", "2.13.0+cpu", "2.15.9", "2.14.0a0+gitabc", "2.15.0.dev20260101+cu132"])
def test_every_hook_is_active_on_a_known_torch(fake, version):
    fake("import safecache; import_all(); assert all_are('active'), reasons()", FAKE_TORCH_VERSION=version)


PRECOMPILE = ["to_cache_bytes", "load", "_write_artifact", "_read_artifact"]
KERNELS = ["_build_fast_launcher", "_raise_triton_cache_load_error"]
FLYDSL = "configure_flydsl_cache_dir"
POOL = "_make_executor"  # of torch's copy of QuACK
OBJECTS = ["_cache_dir", "disk_cache_get", "disk_cache_set", FLYDSL, "get_cache_path", "__enter__", "__exit__"]


@pytest.mark.parametrize(
    ("version", "absent"),
    [
        ("2.12.1", [*PRECOMPILE, *KERNELS, "_probe_load", "pickle", *OBJECTS, "benchmark_gpu", POOL]),
        ("2.13.0", [*PRECOMPILE, "default_cache_dir", FLYDSL, POOL]),
        ("2.14.1", [*PRECOMPILE[2:], "default_cache_dir", FLYDSL, POOL]),
    ],
)
def test_hook_on_what_a_release_does_not_have_or_need_is_not_missed(fake, version, absent):
    fake(
        f"""
        import safecache
        import_all()
        hooks = [hook for hook in safecache.status() if hook.state == "not for this torch"]
        assert sorted(hook.name.split(".")[-1] for hook in hooks) == {sorted(absent)}, hooks
        assert not any(hook.reason for hook in hooks)
        """,
        FAKE_TORCH_VERSION=version,
    )


def test_hooks_that_cannot_be_imported_stand_down(fake):
    """They are known by the modules that they would be on; the hooks of others on these modules are put on."""
    said = fake(
        """
        import safecache
        sys.modules["safecache.integrations.codecache"] = None
        import_all()
        down = reasons()
        assert set(down) == {CODECACHE, "torch._inductor.compile_fx"}, down
        assert all(reason.startswith("ModuleNotFoundError: ") for reason in down.values()), down
        found = states()
        assert {state for name, state in found.items() if name not in down} == {"active"}, found
        assert f"{CODECACHE}.torch_key" in found and f"{CODECACHE}.FxGraphCache._save_graph" not in found
        stock = sys.modules[CODECACHE].FxGraphCache.iterate_over_candidates(True, None, "key")
        assert list(stock) == ["stock iterate_over_candidates"]
        del sys.modules["safecache.integrations.codecache"]
        safecache.activate()
        assert all_are("active"), reasons()
        assert list(sys.modules[CODECACHE].FxGraphCache.iterate_over_candidates(True, None, "key")) == []
        """,
        loud=True,
    )
    (warning,) = said.warnings
    assert "the hooks of safecache.integrations.codecache stand down" in warning


@pytest.mark.parametrize("error", ["ImportError", "RuntimeError"])
def test_wrapt_that_cannot_be_imported_leaves_torch_as_in_stock_until_it_is_mended(fake, tmp_path, error):
    (tmp_path / "wrapt.py").write_text(f"raise {error}('broken')")
    said = fake(
        f"""
        import safecache, torch
        sys.path.insert(0, {str(tmp_path)!r})
        modules = import_all()
        torch.failures["_save_graph"] = ValueError("no")
        try:
            sys.modules[CODECACHE].FxGraphCache._save_graph("key", None, [], True, None)
        except ValueError:
            pass
        else:
            raise AssertionError("not stock")
        sys.path.remove({str(tmp_path)!r})
        safecache.activate()
        assert all_are("active"), (states(), reasons())
        assert import_all() == modules
        """,
        loud=True,
    )
    assert len(said.warnings) == 1, "one cause, one warning"
    assert f"works as in stock torch: {error}: broken" in said.warnings[0]
    assert "Traceback" not in said.errors


def test_status_is_told_where_wrapt_cannot_be_imported(fake):
    fake(
        """
        import safecache
        sys.modules["wrapt"] = None
        import_all()
        assert "active" not in states().values(), states()
        """,
        loud=True,
    )


def test_wrapt_of_another_shape_makes_every_hook_stand_down(fake):
    fake(
        """
        import safecache, types
        sys.modules["wrapt"] = types.ModuleType("wrapt")
        import_all()
        assert all_are("standing down"), states()
        before = snapshot()
        safecache.activate()
        safecache.deactivate()
        assert differences(before, snapshot()) == [] and all_are("inactive")
        """,
        loud=True,
    )


def test_wrapt_that_is_too_old_breaks_neither_status_nor_deactivation(fake):
    """Before 2.5.2 it had no unwrap_object; an environment can hold one in spite of our requirement."""
    fake(
        """
        import safecache, wrapt
        for name in "find_wrapper", "unwrap_object", "WrapperNotOutermostError", "PathResolutionError":
            delattr(wrapt, name)
        import_all()
        before = snapshot()
        safecache.status()
        safecache.activate()
        safecache.status()
        safecache.deactivate()
        assert not safecache.is_active()
        """,
        loud=True,
    )
