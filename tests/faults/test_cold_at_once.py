"""Processes that compile the same at once never meet a file of code before its record."""

from __future__ import annotations

import pytest
from helpers.together import said

from faults import compiling

pytestmark = pytest.mark.default_release

pytest.importorskip("triton")


# Alone, each compiles all of it.
@pytest.mark.parametrize("single_flight", ["0", "1"])
def test_strict_processes_that_compile_at_once_refuse_nothing(home, single_flight):
    env = {"SAFECACHE_SINGLE_FLIGHT": single_flight}
    answer = home.run(compiling.compile_all_at_once, processes=3, strict=True, env=env)
    assert answer.ok and len(answer.result) == 3, answer
    assert not any(each["error"] for each in answer.result) and not said(answer.result), answer
    assert all("unsealed" not in each["stats"] and each["stats"] for each in answer.result), answer
