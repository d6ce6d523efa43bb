"""Packs: a cache as one signed file, which is verified and read group by group, without being unpacked.

A feature: it may import the core, and no other feature. Commands use ``archive``, by way of upkeep.
"""

from __future__ import annotations

from collections.abc import Iterator

from safecache.places.refs import Ref
from safecache.ports import Bundle, Tier
from safecache.settings import config

__all__ = ["PACKS"]


class _Packs(Tier):
    """The packs that SAFECACHE_LOWER names. The rest is imported where there is one."""

    def candidates(self, ref: Ref) -> Iterator[Bundle]:
        """As Tier.candidates()."""
        if config.current().packs:
            from safecache.packs import lower

            yield from lower.candidates(ref)


PACKS = _Packs()
