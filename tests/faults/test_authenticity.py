"""All that is in the caches must be authentic: every attack on every place is refused, for its own reason."""

from __future__ import annotations

import re
from itertools import cycle

import pytest
from conftest import WARM
from package.test_golden import compare
from scenes import authenticity_scenes

from faults.authenticity import AHEAD_OF_TIME, ENTRIES, MATRIX, SAME_BYTES, SINKS
from safecache.reporting.kinds import Reason

pytestmark = pytest.mark.xdist_group("authenticity")

# Directories; keys, digests and the names made of them; versions, process ids.
VARIES = re.compile(r"(?<=[ =`])/[^ ;:`,]+|\b[0-9a-z._-]{16,}|\d+\.\d+\.\d[\w.+]*|(?<=pid )\d+")
CONTROL = "as it should be"
HERE = {"gpu": "sm_90"}
CELLS = [
    pytest.param(attack, sink, id=f"{attack.replace(' ', '-')}-{sink}")
    for attack, row in MATRIX.items()
    for sink, cell in row.items()
    if isinstance(cell, Reason) or cell is SAME_BYTES
]
ATTACKS_ON_ENTRIES = list(zip([attack for attack in MATRIX if attack != "swap"], cycle(ENTRIES), strict=False))
STRICTNESS = pytest.mark.parametrize("strict", [False, True], ids=["default", "strict"])


@pytest.fixture(scope="module")
def face(new_home, trojan):
    """What came of every attack on a sink, all of them in one process, and of what is as it should be in another."""
    columns = {}

    def face(sink):
        if sink in ("kernel",):
            pytest.importorskip("triton")
        if sink not in columns:
            columns[sink] = {}
            for attacks in ([CONTROL], list(MATRIX)):
                home = new_home()
                arguments = {"sink": sink, "attacks": attacks, "directory": str(home.base), "trojan": str(trojan)}
                answer = home.run(authenticity_scenes.face, build=HERE, **arguments)
                assert answer.ok, answer
                columns[sink] |= answer.result
        return columns[sink]

    return face


def test_every_cell_of_the_matrix_says_what_it_is():
    assert all(set(row) == set(SINKS) for row in MATRIX.values())
    assert all(isinstance(cell, Reason) or len(cell) > 40 for row in MATRIX.values() for cell in row.values())


@pytest.mark.parametrize("sink", [sink for sink in SINKS if sink != "source"])
def test_what_is_planted_runs_if_its_seal_is_as_it_should_be(face, sink):
    """Or the tests here would prove nothing."""
    cell = face(sink)[CONTROL][0]
    counted = cell["counts"].keys() & {"verified", "code verified"}
    assert cell["ran"] and (counted or sink == "extension"), cell


@STRICTNESS
@pytest.mark.parametrize(("attack", "sink"), CELLS)
def test_attack_is_refused_for_its_reason(face, attack, sink, strict):
    cell, expected = face(sink)[attack][strict], MATRIX[attack][sink]
    assert not cell["ran"], cell
    reasons = {reason.value for reason in Reason} & cell["counts"].keys()
    if expected is SAME_BYTES:
        # What is verified in their place is harmless, and no entry.
        assert reasons <= {"wrong type"}, cell
        return
    assert reasons == {expected.value} and cell["counts"][expected.value] == 1, cell
    # A swap of a library is found when it is about to be loaded: too late for a miss.
    explicit = sink in (*AHEAD_OF_TIME, "package")
    misses = not explicit and (attack, sink) not in [("swap", "library"), ("swap", "extension")]
    # What loads a package from elsewhere than torch's own function for that raises plain EntryRefusedError.
    is_artifact = sink in AHEAD_OF_TIME or (attack, sink) == ("swap", "precompile")
    error = "RefusedArtifactError" if is_artifact else "EntryRefusedError"
    made_anew = "hit" if sink == "source" else "miss"
    raised = strict and expected is not Reason.OUTDATED
    assert cell["outcome"] == (made_anew if misses and not raised else error), cell


@pytest.mark.default_release
def test_messages_are_those_that_were_read_and_approved(face):
    """Without what differs from one run to the next: paths, keys, digests, builds."""
    rows = [
        (sink, attack, line)
        for sink in ("aot", "library")
        for attack in MATRIX
        for line in face(sink)[attack][0]["said"]
    ]
    compare("messages", [f"{attack} on {sink}: {VARIES.sub('*', line)}" for sink, attack, line in rows])


@pytest.mark.parametrize(("attack", "kind"), ATTACKS_ON_ENTRIES)
def test_attack_on_entries_that_another_process_compiles_with(warm, attack, kind):
    """All the way: the compile goes on, and is right. Each attack is on entries of the one kind or of the other."""
    planted = warm.run(authenticity_scenes.plant_in_entries, attack=attack, kind=kind, directory=str(warm.base))
    assert planted.ok and planted.result == (1 if kind == "aot" else 2), planted
    trust = {"SAFECACHE_TRUST": "private" if attack == "open ancestor" else "signed"}
    answer = warm.run(env=trust, build=HERE)
    assert answer.ok and answer.result["aot"]["hit"] == 0, answer
    assert not (warm.base / "ran").exists()
    reasons = {reason.value for reason in Reason} & answer.stats.keys()
    assert MATRIX[attack][kind].value in reasons and len(answer.warnings) >= 1, answer
    again = warm.run(build=HERE)
    assert again.ok and again.hits == WARM and not (warm.base / "ran").exists(), again
