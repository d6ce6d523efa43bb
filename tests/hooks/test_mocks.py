"""unittest.mock over our hooks and beside them: it works, and what it puts back is what was there."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("name", ["save", "_handle_save_error", "try_load", "_write_to_local_cache"])
def test_mock_over_a_hook_is_called_and_ends_with_the_hook(fake, name):
    fake(
        f"""from saving_scene import *
from unittest import mock
hook = vars(cache)[{name!r}]
for arguments in {{}}, {{"autospec": True}}, {{"new": lambda *args, **kwargs: "mocked"}}:
    with mock.patch.object(cache, {name!r}, **arguments):
        assert "overwritten" in states().values() and vars(cache)[{name!r}] is not hook
    assert vars(cache)[{name!r}] is hook and all_are("active")
with mock.patch.object(cache, {name!r}, return_value="mocked") as mocked:
    assert getattr(cache, {name!r})(1, 2) == "mocked"
    mocked.assert_called_once_with(1, 2)
with mock.patch.object(cache, {name!r}, wraps=getattr(cache, {name!r})):
    pass
assert all_are("active") and save() == ("hooked", 1, 0)
""",
        loud=True,
    )


@pytest.mark.parametrize(
    ("owner", "call"),
    [
        ("sys.modules[CODECACHE].FxGraphCache", "_get_shape_env()"),
        ("sys.modules[CODECACHE].FxGraphCache", "_check_can_cache('module')"),
    ],
)
def test_mock_of_a_neighbour_of_the_hooks_works(fake, owner, call):
    """vLLM mocks these around its own compiles."""
    fake(
        f"""
        import safecache
        from unittest import mock
        import_all()
        owner, name = {owner}, {call.partition("(")[0]!r}
        before = snapshot()
        for arguments in {{}}, {{"autospec": True}}, {{"new": lambda *args: "mocked"}}:
            results = {{}} if "new" in arguments else {{"return_value": "mocked"}}
            with mock.patch.object(owner, name, **arguments, **results):
                assert owner.{call} == "mocked" and all_are("active")
            assert owner.{call} == "stock " + name
            assert all_are("active")
        """
    )


def test_key_that_is_mocked_is_the_mock_and_then_ours_again(fake):
    """vLLM mocks it around its own compiles."""
    fake(
        """
        import safecache
        from unittest import mock
        import_all()
        owner = sys.modules[AUTOGRAD_CACHE]
        before = snapshot()
        with mock.patch.object(owner, "autograd_cache_key", lambda *args: "mocked"):
            assert owner.autograd_cache_key("module", [], None) == "mocked"
        assert all_are("active") and snapshot() == before
        assert owner.autograd_cache_key("module", [], None) == "stock autograd_cache_key"
        """
    )


def test_mock_that_ends_after_deactivation_leaves_the_stock_behaviour(fake):
    fake(
        """from saving_scene import *
from unittest import mock
with mock.patch.object(cache, "save") as mocked:
    safecache.deactivate()
    assert vars(cache)["save"] is mocked and all_are("inactive")
assert save() == ("stock", 1, 0) and all_are("inactive")
""",
        loud=True,
    )


def test_mock_that_begins_before_activation_ends_with_the_stock_object(fake):
    fake(
        """from saving_scene import *
from unittest import mock
safecache.deactivate()
with mock.patch.object(cache, "save") as mocked:
    safecache.activate()
    assert vars(cache)["save"] is mocked and states()[NAME] == "standing down"
assert vars(cache)["save"] is stock
safecache.activate()
assert all_are("active") and save() == ("hooked", 1, 0)
""",
        loud=True,
    )


def test_hook_that_a_mock_brought_back_is_not_doubled(fake):
    fake(
        """from saving_scene import *
from unittest import mock
with mock.patch.object(cache, "save"):
    safecache.deactivate()
safecache.activate()
assert all_are("active") and save() == ("hooked", 1, 0)
safecache.deactivate()
assert all_are("inactive") and save() == ("stock", 1, 0)
""",
        loud=True,
    )
