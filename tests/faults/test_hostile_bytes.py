"""Nothing that was planted is unpickled, executed, loaded or even looked up; stock torch runs every case.

What Python does meanwhile is watched with an audit hook (see harness/planted.py), in the process that compiles or loads.
"""

from __future__ import annotations

import shutil

import pytest
from harness.planted import MARKER

from faults import hostile
from faults.hostile import CASES


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_is_planted_is_refused_and_never_looked_at(warm, trojan, tmp_path, case):
    if case.needs:
        pytest.importorskip(case.needs)
    warm.environment[MARKER] = str(hostile.marker(warm))
    scene = case.plant(warm, trojan)
    # Who plants may have had to run it first.
    hostile.marker(warm).unlink(missing_ok=True)
    shutil.copytree(warm.base, tmp_path / "planted", symlinks=True)

    def meet(**how):
        shutil.rmtree(warm.base)
        shutil.copytree(tmp_path / "planted", warm.base, symlinks=True)
        answer = warm.run(**scene, audit=True, **how)
        return answer, hostile.did_harm(warm, answer)

    answer, harmed = meet(stock=True)
    assert harmed, f"or the rest would prove nothing: {answer}"
    assert not case.seen or any(event.startswith(case.seen) for event in answer.seen), answer

    answer, harmed = meet()
    assert not harmed and answer.seen == [], answer
    assert answer.warnings, answer
    assert answer.ok if case.misses else answer.errors[0] == "RefusedArtifactError", answer

    answer, harmed = meet(strict=True)
    assert not harmed and answer.seen == [], answer
    assert {"EntryRefusedError", "RefusedArtifactError"} & set(answer.errors) and not answer.warnings, answer
