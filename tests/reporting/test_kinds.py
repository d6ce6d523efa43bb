"""What the layers ask of a kind stands in one record."""

from __future__ import annotations

import inspect
import re

import pytest

from safecache.places.refs import Ref
from safecache.reporting import kinds
from safecache.reporting.kinds import Evidence, Kind, SealedName, Travel

ROW = '    MEMO = "memo", ("memoized result", "", "", ""), _need_seal(bound_to=()), _STAYS, _UNLISTED\n'


@pytest.mark.parametrize(
    "row",
    [
        ROW.replace(", _UNLISTED", ""),
        ROW.replace(", _STAYS", ""),
        ROW.replace(", _need_seal(bound_to=())", ""),
        ROW.replace(', "")', ")"),
        ROW.replace("_STAYS", 'Tiers("{key}", Travel.NOWHERE, "", False)'),
        ROW.replace("_UNLISTED", "Upkeep(Eviction.BY_USE, False)"),
        ROW.replace("_need_seal(bound_to=())", "Proof(Evidence.SEAL, SealedName.KEY, (), Fingerprint.NOTHING)"),
    ],
)
def test_a_kind_without_an_answer_does_not_import(row):
    source = inspect.getsource(kinds)
    assert ROW in source and row != ROW
    exec(compile(source, "kinds", "exec"), {"__name__": "kinds"})
    with pytest.raises((TypeError, ValueError)):
        exec(compile(source.replace(ROW, row), "kinds", "exec"), {"__name__": "kinds"})


def test_what_travels_is_proven_and_has_keys():
    for kind in Kind:
        travels = kind.tiers.travel is not Travel.NOWHERE
        assert bool(kind.tiers.key) == travels
        assert not travels or kind.proof.evidence is not Evidence.NOTHING
        assert not (kind.tiers.is_pulled or kind.tiers.lease is not kinds.LeaseScope.NONE) or travels
        assert not kind.has_record or kind.proof.name in (SealedName.FILE, SealedName.FOLDER, SealedName.PATH)


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind.tiers.key], ids=lambda kind: kind.value)
def test_no_key_leads_out_of_its_cache(kind):
    for key in ("", ".", "..", "../a", "a/../../b", "/a", "a//b", "./a", "a/..", "a\0", "{root}", "{0.__class__}"):
        if re.fullmatch(kind.tiers.key, key):
            path = Ref(kind, key, "/cache").path
            assert path.startswith("/cache/") and ".." not in path.split("/"), key
        else:
            assert not Ref(kind, key).has_valid_key
