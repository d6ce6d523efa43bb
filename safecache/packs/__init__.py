"""Packs: a cache as one signed file, which is verified and read group by group, without being unpacked.

A feature: it may import the core, and no other feature. Commands use ``archive``, by way of upkeep.
"""

from __future__ import annotations

from safecache.places.refs import Ref
from safecache.ports import Tier
from safecache.settings import config

__all__ = ["PACKS"]


class _Packs(Tier):
    """The packs that SAFECACHE_LOWER names. The rest is imported where there is one."""

    def is_on(self) -> bool:
        """Whether there is any."""
        return bool(config.current().packs)

    def fetch(self, ref: Ref) -> bool:
        """As Tier.fetch()."""
        if not self.is_on():
            return False
        from safecache.packs import lower

        return lower.fill(ref)

    def has_supplied(self) -> bool:
        """As Tier.has_supplied()."""
        if not self.is_on():
            return False
        from safecache.packs import lower

        return lower.has_given()


PACKS = _Packs()
