"""Our hooks come off again when others have put theirs on top, or something else in their place."""

from __future__ import annotations

import pytest


def test_hook_is_spliced_out_from_under_another_of_wrapt(fake):
    fake(
        """from saving_scene import *
handle = wrap_with_wrapt()
assert save() == ("hooked", 1, 1) and states()[NAME] == "active"
safecache.deactivate()
assert vars(cache)["save"] is handle and handle.__wrapped__ is stock
assert save() == ("stock", 1, 1)
wrapt.unwrap_object(module, "AOTAutogradCache.save", handle)
assert vars(cache)["save"] is stock
""",
        loud=True,
    )


def test_hook_goes_on_top_of_another_and_comes_off_again(fake):
    fake(
        """from saving_scene import *
handle = wrap_with_wrapt()
for _ in range(3):
    safecache.deactivate()
    assert vars(cache)["save"] is handle and save() == ("stock", 1, 1)
    safecache.activate()
    assert save() == ("hooked", 1, 1) and all_are("active")
""",
        loud=True,
    )


# What a closure calls: the usual way of getting it makes wrapt bind a new object to ours.
BELOW = ["vars(cache)['save']", "cache.save"]


@pytest.mark.parametrize("below", BELOW)
def test_hook_under_a_closure_becomes_a_pass_through(fake, below):
    fake(
        f"""from saving_scene import *
before = snapshot()
wrap_with_closure({below})
assert save() == ("hooked", 1, 1)
safecache.deactivate()
assert all_are("inactive"), states()
assert save() == ("stock", 1, 1)
others = differences(before, snapshot())
assert len(others) == len(states()), others
""",
        loud=True,
    )


@pytest.mark.parametrize("below", BELOW)
def test_hook_under_a_closure_is_active(fake, below):
    fake("from saving_scene import *\n" + f"wrap_with_closure({below}); assert all_are('active'), states()", loud=True)


@pytest.mark.parametrize("below", BELOW)
@pytest.mark.parametrize("deactivated", [True, False])
def test_hook_under_a_closure_is_not_doubled_by_activating_again(fake, below, deactivated):
    fake(
        f"""from saving_scene import *
wrap_with_closure({below})
on_top = vars(cache)["save"]
for _ in range(3):
    if {deactivated}:
        safecache.deactivate()
        assert save() == ("stock", 1, 1)
    safecache.activate()
    assert all_are("active") and save() == ("hooked", 1, 1)
    assert vars(cache)["save"] is on_top
""",
        loud=True,
    )


def test_hook_comes_off_once_the_closure_is_gone(fake):
    fake(
        """from saving_scene import *
ours = vars(cache)["save"]
wrap_with_closure(ours)
safecache.deactivate()
cache.save = ours
assert save() == ("stock", 1, 0)
safecache.deactivate()
assert vars(cache)["save"] is stock
""",
        loud=True,
    )


@pytest.mark.parametrize("below", BELOW)
def test_hook_under_both_a_closure_and_wrapt_becomes_a_pass_through(fake, below):
    fake(
        f"""from saving_scene import *
wrap_with_closure({below})
wrap_with_wrapt()
assert save() == ("hooked", 1, 2)
safecache.deactivate()
assert all_are("inactive") and save() == ("stock", 1, 2)
""",
        loud=True,
    )


CALLS = {
    "codecache.FxGraphCache._save_graph": "('key', None, [], True, None)",
    "codecache.FxGraphCache._write_to_local_cache": "('key', b'content')",
    "autograd_cache.AOTAutogradCache.save": "('key', None, False)",
    "autograd_cache.AOTAutogradCache._handle_save_error": "(ValueError('no'), False, is_bypass=False)",
    "autograd_cache.AOTAutogradCache.try_load": "(None, [], None, None, True, False, compile_region_name='region')",
    "autograd_cache.AOTAutogradCache._write_to_local_cache": "('key', b'content')",
    "_cache.CacheArtifactManager.populate_caches": "({})",
    "standalone_compile.CompiledArtifact.load": "(path='place', format='unpacked')",
    "standalone_compile.CacheCompiledArtifact.load": "(path='place')",
}


@pytest.mark.parametrize("function", CALLS)
def test_function_that_somebody_kept_behaves_as_in_stock_once_deactivated(fake, function):
    module, name = function.split(".", 1)
    fake(
        f"""
        import safecache, torch
        module = next(module for module in import_all() if module.__name__.endswith(".{module}"))
        kept = module.{name}
        safecache.deactivate()
        assert kept is not module.{name}
        for error in None, ArithmeticError("stock"):
            torch.failure = error
            outcomes, recorded = [], []
            for called in kept, module.{name}:
                del torch.calls[:]
                try:
                    outcomes.append(called{CALLS[function]})
                except ArithmeticError as raised:
                    outcomes.append(raised)
                recorded.append([repr(call) for call in torch.calls])
            assert outcomes[0] == outcomes[1] and recorded[0] == recorded[1] != [], (outcomes, recorded)
        assert outcomes[0] is error
        """
    )


def test_lookup_that_somebody_kept_behaves_as_in_stock_once_deactivated(fake):
    fake(
        """
        import safecache
        import_all()
        cache = sys.modules[CODECACHE].FxGraphCache
        kept = cache.iterate_over_candidates
        assert list(kept(True, None, "key")) == []
        safecache.deactivate()
        assert list(kept(True, None, "key")) == ["stock iterate_over_candidates"]
        """
    )


def test_function_that_was_replaced_is_left_to_whoever_did_it(fake):
    fake(
        """from saving_scene import *
replacement = staticmethod(lambda key, entry, remote: theirs.append(1))
cache.save = replacement
assert states()[NAME] == "overwritten" and save() == ("neither", 0, 1)
safecache.deactivate()
assert vars(cache)["save"] is replacement and all_are("inactive")
safecache.activate()
assert all_are("active"), states()
safecache.deactivate()
assert vars(cache)["save"] is replacement
""",
        loud=True,
    )
