"""Processes that compile the same at once never meet a file of code before its record."""

from __future__ import annotations

import pytest
from helpers.together import Together, said

pytestmark = pytest.mark.default_release

pytest.importorskip("triton")

RUN = """
from scenes import kernel_scenes, model_scenes
for _ in range(3):
    kernel_scenes.compile_kernel()
kernel_scenes.build_module()
model_scenes.compile_model()
y = x
"""


# Alone, each compiles all of it.
@pytest.mark.parametrize("single_flight", ["0", "1"])
def test_strict_processes_that_compile_at_once_refuse_nothing(home, single_flight):
    with Together(home, 3, RUN, SAFECACHE_STRICT="1", SAFECACHE_SINGLE_FLIGHT=single_flight) as processes:
        processes.begin()
        answers = processes.answers()
    assert not said(answers) and all("unsealed" not in answer["stats"] for answer in answers), answers
