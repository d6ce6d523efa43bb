"""How a lookup ends that an exception leaves."""

from __future__ import annotations

import pytest

from safecache import history
from safecache.entries import searches
from safecache.places.refs import Ref
from safecache.reporting.kinds import Kind


class StopCompiling(BaseException):
    """As vLLM's: raised from within the lookup of a graph that the process has compiled already."""


def test_lookup_that_is_not_gone_on_with_is_none():
    with pytest.raises(StopCompiling), searches.track_lookup(Ref(Kind.AOT_ENTRY), lambda: "f"):
        raise StopCompiling
    assert history.get_counts() == {} and not searches.is_under_way(Kind.AOT_ENTRY)


def test_lookup_that_fails_is_a_bypass():
    with pytest.raises(RuntimeError), searches.track_lookup(Ref(Kind.AOT_ENTRY), lambda: "f"):
        raise RuntimeError("out of registers")
    assert history.get_counts() == {"aot bypass: lookup failed": 1}
    with searches.track_lookup(Ref(Kind.AOT_ENTRY), lambda: "f"):
        pass
    assert history.get_counts()["aot bypass: lookup failed"] == 1
