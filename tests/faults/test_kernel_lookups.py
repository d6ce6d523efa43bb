"""A lookup in Triton's cache is a hit if nothing was compiled; else it has the reason why not."""

from __future__ import annotations

import pytest
from scenes import lookup_scenes

from faults.hostile import triton_files

pytest.importorskip("triton")


def looked_up(home, **how):
    answer = home.run(lookup_scenes.kernels_looked_up, **how)
    assert answer.ok, answer
    return answer.result["lookups"], answer.result["compiled"]


def test_kernel_misses_once_and_hits_then(home):
    assert looked_up(home) == ({"triton miss: never seen": 1}, True)
    assert looked_up(home) == ({"triton hit": 1}, False)


def test_kernel_whose_file_was_damaged_misses_for_that(home):
    looked_up(home)
    for path in triton_files(home, "*.cubin"):
        path.write_bytes(path.read_bytes()[:-8] + bytes(8))
    assert looked_up(home) == ({"triton miss: damaged": 1}, True)
    assert looked_up(home) == ({"triton hit": 1}, False)


def test_kernel_that_is_compiled_in_any_case_is_a_bypass(home):
    looked_up(home)
    assert looked_up(home, always_compile=True) == ({"triton bypass: disabled": 1}, True)
