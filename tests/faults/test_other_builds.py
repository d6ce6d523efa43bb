"""What was built for another GPU or by another torch is not run, though the seal is good and the place is right."""

from __future__ import annotations

import pytest
from conftest import WARM
from scenes import kernel_scenes

from faults.doors import FUNCTION, GRAPH, PROFILE

pytestmark = pytest.mark.default_release

OTHERS = {
    "other GPU": {"gpu": "sm_80"},
    "other build": {"torch": "2.10.0+cu128"},
}
EACH = pytest.mark.parametrize(("reason", "other"), OTHERS.items(), ids=OTHERS)
HERE = {"gpu": "sm_90"}


@EACH
def test_entries_of_another_build_are_a_miss_and_heal(home, reason, other):
    assert home.run(build=HERE | other).ok
    answer = home.run(build=HERE)
    assert answer.ok and answer.hits == (0, 0), answer
    assert answer.stats[reason] == answer.stats["quarantined"] == 3, answer
    assert len(answer.warnings) == 2 and all(next(iter(other.values())) in text for text in answer.warnings), answer
    healed = home.run(build=HERE)
    assert healed.ok and healed.hits == WARM and not healed.warnings, healed


@EACH
def test_entries_of_another_build_are_refused_in_strict_mode(home, reason, other):
    assert home.run(build=HERE | other).ok
    answer = home.run(build=HERE, strict=True)
    assert "EntryRefusedError" in answer.errors, answer


@EACH
@pytest.mark.parametrize("door", [FUNCTION, GRAPH], ids=lambda door: door.name)
def test_artifact_of_another_build_is_refused(home, door, reason, other):
    door.save(home, build=HERE | other)
    answer = door.load(home, build=HERE)
    assert answer.errors[0] == "RefusedArtifactError" and answer.stats == {reason: 1}, answer


@EACH
def test_profile_of_another_build_is_taken(home, reason, other):
    """It says which shapes were met, and no code is in it."""
    PROFILE.save(home, build=HERE | other)
    answer = PROFILE.load(home, build=HERE)
    assert answer.ok and answer.result is True, answer
    assert not any(PROFILE.noun in text for text in answer.warnings), answer


def test_library_of_another_torch_is_built_anew_without_a_word(home):
    """As after each upgrade: Inductor's name for it is the same, and torch's headers are not."""
    assert home.run(build={"torch": "2.10.0+cu128"}).ok
    for entry in [*home.aot_entries, *home.fx_entries]:
        entry.unlink()  # whose key is another one after an upgrade
    answer = home.run(strict=True)
    assert answer.ok and not answer.warnings and answer.stats["outdated"] >= 1, answer
    again = home.run(strict=True)
    assert again.ok and again.hits == WARM and "outdated" not in again.stats, again


def test_kernel_of_another_triton_is_a_miss(home):
    pytest.importorskip("triton")
    assert home.run(kernel_scenes.compile_kernel, build={"triton": "3.5.0"}).result["compiled"]
    answer = home.run(kernel_scenes.compile_kernel)
    assert answer.ok and answer.result["compiled"] and answer.stats["other build"] == 1, answer
    again = home.run(kernel_scenes.compile_kernel)
    assert again.ok and not again.result["compiled"] and not again.warnings, again
