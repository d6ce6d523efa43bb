"""The server of the GPU's scenario, on the CPU: it comes up through each fault, with one line for it, and right numbers."""

from __future__ import annotations

import pytest

from . import serving
from .serving import Case, Site

pytestmark = [pytest.mark.default_release, pytest.mark.timeout(900)]

CASES = [
    Case("planted", serving.plant, ["unsealed", "unsealed"], again=None, activation="plugin"),
    Case("killed", serving.kill_in_save, deaths=True, activation="run"),
    Case("unpicklable", serving.be_unpicklable, ["unpicklable"], again=None, activation="sitecustomize"),
]


# One test: the cold start, which all begin with, would be made by each process that runs some of them.
def test_server_comes_up_through_each_fault_with_right_numbers(tmp_path):
    warm = Site(tmp_path / "warm", "cpu", workers=1)
    cold = warm.start()
    cold.check()
    assert cold.reasons == [] and cold.workers[0]["source"] == "compiled", cold
    for case in CASES:
        site = warm.copy(tmp_path / case.name)
        serving.check(case, serving.run(case, site), site)
