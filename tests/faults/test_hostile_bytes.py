"""Nothing that was planted is unpickled, executed, loaded or even looked up; stock torch runs every case.

What Python does meanwhile is watched with an audit hook (see harness/planted.py), in the process that compiles or loads.
"""

from __future__ import annotations

import pytest
from harness.planted import MARKER

from faults import hostile
from faults.hostile import CASES

EACH = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@pytest.fixture
def meet(warm, trojan):
    """Plant, and run into what was planted."""
    warm.environment[MARKER] = str(hostile.marker(warm))

    def meet(case, **how):
        if case.needs:
            pytest.importorskip(case.needs)
        scene = case.plant(warm, trojan)
        # Who plants may have had to run it first.
        hostile.marker(warm).unlink(missing_ok=True)
        answer = warm.run(**scene, audit=True, **how)
        return answer, hostile.did_harm(warm, answer)

    return meet


@EACH
def test_what_is_planted_does_its_harm_on_stock_torch(meet, case):
    """Or the tests here would prove nothing."""
    answer, harmed = meet(case, stock=True)
    assert harmed, answer
    assert not case.seen or any(event.startswith(case.seen) for event in answer.seen), answer


@EACH
def test_what_is_planted_is_refused_and_never_looked_at(meet, case):
    answer, harmed = meet(case)
    assert not harmed and answer.seen == [], answer
    assert answer.warnings, answer
    assert answer.ok if case.misses else answer.errors[0] == "RefusedArtifactError", answer


@EACH
def test_what_is_planted_is_an_error_in_strict_mode_and_never_looked_at(meet, case):
    answer, harmed = meet(case, strict=True)
    assert not harmed and answer.seen == [], answer
    assert {"EntryRefusedError", "RefusedArtifactError"} & set(answer.errors) and not answer.warnings, answer
