"""The compile server starts as soon as it is certain to be needed, and not where all hits."""

from __future__ import annotations

import pytest

from crashes import crash_scenes, tuning_scenes


def started(home, **environment):
    return home.run(tuning_scenes.start_when_cold, env=environment).result


def test_server_starts_before_the_first_key_is_computed_and_not_where_all_hits(home):
    assert started(home)[:2] == ["start", "key"]
    assert set(started(home)) == {"key"}


@pytest.mark.parametrize("variable", ["SAFECACHE_LOCAL", "SAFECACHE_LOWER"])
def test_server_is_not_started_early_where_another_level_may_have_it(home, variable):
    steps = started(home, **{variable: str(home.base / "level")})
    assert steps[0] == "key" and "start" in steps


def test_cache_that_cannot_be_listed_is_for_triton_to_report(home):
    home.cache.write_text("in the way")
    assert home.run(crash_scenes.compile_each, names=["wrong-types"]).result[0]["error"] == "CompilationError"
