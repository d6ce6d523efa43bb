"""Where else a file of the cache may lie."""

from __future__ import annotations

from safecache.tiers import fallback


def test_file_may_lie_at_its_place_in_each_layer_in_their_order(settings):
    settings(SAFECACHE_LOWER="/image:/nfs/cache")
    found = list(fallback.iter_lower_paths("/cache/ab/cab.so", "/cache"))
    assert found == [("/image/ab/cab.so", "/image"), ("/nfs/cache/ab/cab.so", "/nfs/cache")]


def test_there_are_none_by_default():
    assert list(fallback.iter_lower_paths("/cache/ab/cab.so", "/cache")) == []
