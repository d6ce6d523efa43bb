"""The authenticity matrix once more: by what a process holds of keys, by trust, by mode, and after what was done by hand."""

from __future__ import annotations

import pytest
from scenes import authenticity_scenes

from faults.authenticity import AHEAD_OF_TIME, MATRIX, NO_SEAL, SAME_BYTES, SINKS
from safecache.reporting.kinds import Reason

pytestmark = [pytest.mark.default_release, pytest.mark.xdist_group("authenticity states")]
CONTROL = "as it should be"
HERE = {"gpu": "sm_90"}
# Of the keys: what was sealed by the farm can be verified, is by a key that was withdrawn, or by one that is not known.
VERIFIED, WITHDRAWN = ("MAC", "Ed25519", "public part"), ("revoked", "expired")
UNKNOWN = ("another", "unreadable", "missing", "no keyring", "no home")
# Whose files are also trusted for being private, where the user has said so.
BY_PATH = ("aot", "fx", "code", "kernel")
PRIVATE = (*BY_PATH, "package", "extension")
# Through which a sink is reached as well.
LINKS = {"package": ("symbolic link",)}
# By nobody that is known, and nothing in them contradicts: that is what the user has said to trust.
NOBODYS = ("no tag", "unknown key", "revoked key", "expired key")
ATTACKS = [attack for attack in MATRIX if attack != "swap"]
# What is said of these depends on the keys, on trust or on the sink; the others differ in their reason alone.
TELLING = [*NOBODYS, "secret of another key", "symbolic link", "other GPU", "other build"]
ALIKE = [attack for attack in ATTACKS if attack not in TELLING]

EACH_SINK = list(enumerate("code" if sink == "library" else sink for sink in SINKS))


@pytest.fixture(scope="module")
def faced(new_home, trojan):
    """What a scene says of a sink, in a process of its own."""

    def faced(scene, sink, **arguments):
        if sink == "kernel":
            pytest.importorskip("triton")
        home = new_home()
        answer = home.run(scene, build=HERE, sink=sink, directory=str(home.base), trojan=str(trojan), **arguments)
        assert answer.ok, answer
        return answer.result

    return faced


def is_good(attack, sink):
    """Whether there is nothing to refuse, for one that knows the key."""
    cell = MATRIX[attack]["library" if sink == "code" else sink] if attack != CONTROL else ""
    return not isinstance(cell, Reason) and cell not in (SAME_BYTES, NO_SEAL)


def may_run(attack, sink, state, trust):
    if trust == "private" and sink in PRIVATE:
        if attack in NOBODYS or (
            state in UNKNOWN and attack in (CONTROL, "secret of another key", *LINKS.get(sink, ()))
        ):
            return True
        if state in UNKNOWN and attack in ("other GPU", "other build") and is_good(attack, sink):
            return True
    return sink != "source" and state in VERIFIED and is_good(attack, sink)


@pytest.mark.parametrize(("number", "sink"), EACH_SINK)
def test_whatever_is_held_of_keys(faced, number, sink):
    """Nothing runs that may not, what may does, nothing is sealed that was not, and no compile fails in default mode.

    Of the attacks that are alike, each sink faces every third.
    """
    wrong, attacks = [], [CONTROL, *TELLING, *ALIKE[number % 3 :: 3]]
    for where, outcomes in faced(authenticity_scenes.face_in_states, sink, attacks=attacks).items():
        state, trust = where.split(", ")
        for attack, cells in outcomes.items():
            for strict, cell in enumerate(cells):
                right = cell["ran"] == may_run(attack, sink, state, trust) and not cell["sealed"]
                fails = (
                    sink not in (*AHEAD_OF_TIME, "package") and not strict and cell["outcome"] not in ("hit", "miss")
                )
                if not right or (fails and not cell["ran"]):
                    wrong.append((state, trust, attack, strict, cell))
    assert not wrong, wrong[:9]


@pytest.mark.parametrize("sink", BY_PATH)
def test_whatever_was_done_by_hand(faced, sink):
    """What was adopted is trusted, on the user's word, if nothing contradicts; nothing else comes to be."""
    flows = ["sign", "adopt", "restore", *(["lower", "local"] if sink in ("aot", "fx") else ["lower"])]
    if sink == "code":
        flows.remove("lower")  # taken from a layer where it would be built, which this sink does not do
    attacks = [attack for attack in ATTACKS if attack != "open ancestor"]
    wrong = []
    for flow, outcomes in faced(
        authenticity_scenes.face_in_flows, sink, flows=flows, attacks=[CONTROL, *attacks]
    ).items():
        for attack, cells in outcomes.items():
            adopted = flow == "adopt" and attack in ("no tag", "unknown key")
            expected = is_good(attack, sink) or adopted
            wrong += [
                (flow, attack, strict, cell)
                for strict, cell in enumerate(cells)
                if cell["ran"] != expected or (cell["sealed"] and not expected)
            ]
    assert not wrong, wrong[:9]
