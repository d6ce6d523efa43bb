"""Importing safecache turns the hooks on, for what is imported already and for what is imported later."""

from __future__ import annotations


def test_importing_safecache_imports_no_torch_triton_or_wrapt(fake):
    fake(
        """
        import safecache
        assert safecache.is_active()
        heavy = {name for name in sys.modules if name.split(".")[0] in ("torch", "triton", "wrapt", "rich")}
        assert not heavy, heavy
        """
    )


def test_probe_knows_every_target_module(fake):
    fake(
        """
        import safecache
        from safecache.patching import units
        targets = set(units.list_modules(()))
        assert set(MODULES) == targets, targets
        """
    )


def test_modules_imported_later_are_patched_right_after_their_import(fake):
    fake(
        """
        import safecache
        assert all_are("not yet imported"), states()
        for number, name in enumerate(MODULES):
            module = importlib.import_module(name)
            # Not those of a module below it.
            hooks = {
                hook: state for hook, state in states().items()
                if max((each for each in MODULES if hook.startswith(each + ".")), key=len) == name
            }
            # What this torch does without has no hook.
            without = (".cache_dir_utils", ".flydsl_cache", "_vendor.quack.cache.async_compile")
            assert set(hooks.values()) == {"active"} or name.endswith(without), hooks
        assert all_are("active"), states()
        """
    )


def test_importing_the_switched_off_package_does_nothing(fake):
    fake(
        """
        finders = list(sys.meta_path)
        import safecache
        assert not safecache.is_active() and sys.meta_path == finders
        import_all()
        assert not {"wrapt", "safecache.patching.patching"} & set(sys.modules)
        assert all_are("inactive"), states()
        """,
        SAFECACHE="0",
    )


def test_deactivating_restores_the_import_system(fake):
    fake(
        """
        finders = list(sys.meta_path)
        import safecache
        assert len(sys.meta_path) == len(finders) + 1
        safecache.deactivate()
        assert sys.meta_path == finders
        import_all()
        assert all_are("inactive"), states()
        """
    )


def test_activating_twice_wraps_once(fake):
    fake(
        """
        import safecache
        import_all()
        once, finders = snapshot(), list(sys.meta_path)
        safecache.activate()
        assert differences(once, snapshot()) == [] and sys.meta_path == finders
        safecache.deactivate()
        safecache.deactivate()
        import torch
        cache = sys.modules[CODECACHE].FxGraphCache
        cache._save_graph("key", None, [], True, None)
        assert torch.calls == [("_save_graph", "key")]
        assert "safecache" not in repr(vars(cache)["_save_graph"])
        """
    )


def test_activating_puts_back_a_finder_that_somebody_dropped(fake):
    fake(
        """
        finders = list(sys.meta_path)
        import safecache
        sys.meta_path[:] = finders
        safecache.activate()
        import_all()
        assert all_are("active"), states()
        """
    )


def test_modules_imported_already_are_patched_at_once_and_put_back(fake):
    fake(
        """
        import_all()
        before = snapshot()
        import safecache
        for _ in range(3):
            assert all_are("active") and len(differences(before, snapshot())) == len(states()), states()
            safecache.deactivate()
            assert differences(before, snapshot()) == []
            assert all_are("inactive") and not safecache.is_active()
            safecache.activate()
        """
    )


def test_hooks_work_and_stop_with_deactivation(fake):
    """A save that fails is swallowed with the hook on, and raises as in stock torch with it off."""
    said = fake(
        """
        import safecache, torch
        import_all()
        torch.failures["_save_graph"] = ValueError("no")
        save = sys.modules[CODECACHE].FxGraphCache._save_graph
        save("key", None, [], True, None)
        assert len(torch.calls) == 1
        safecache.deactivate()
        for function in save, sys.modules[CODECACHE].FxGraphCache._save_graph:
            try:
                function("key", None, [], True, None)
            except ValueError:
                continue
            raise AssertionError("the hook is still on")
        assert len(torch.calls) == 3
        """,
        loud=True,
    )
    assert len(said.warnings) == 1 and "ValueError: no" in said.warnings[0], said.errors


def test_states_are_told_apart(fake):
    said = fake(
        """
        import safecache
        name = CODECACHE + ".FxGraphCache._write_to_local_cache"
        assert states()[name] == "not yet imported"
        import_all()
        assert states()[name] == "active"
        cache = sys.modules[CODECACHE].FxGraphCache
        ours = vars(cache)["_write_to_local_cache"]
        cache._write_to_local_cache = staticmethod(lambda key, content: None)
        assert states()[name] == "overwritten"
        cache._write_to_local_cache = ours
        assert states()[name] == "active"
        safecache.deactivate()
        assert states()[name] == "inactive"
        del cache._write_to_local_cache
        safecache.activate()
        assert states()[name] == "standing down" and "not found" in reasons()[name]
        assert list(reasons()) == [name]
        """,
        loud=True,
    )
    assert len(said.warnings) == 1
