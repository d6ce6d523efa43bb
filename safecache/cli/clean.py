"""``safecache clean``: removes all of a cache that no running job uses, and says what it left and why."""

from __future__ import annotations

import argparse

from safecache.cli import sweeping
from safecache.upkeep import eviction
from safecache.upkeep.eviction import Limits

__all__ = ["run"]

_NOTHING = Limits(size=-1)


def run(arguments: argparse.Namespace) -> int:
    """Sweep each directory; 1 if something was left. Raises SafecacheError or OSError."""
    sweeps = sweeping.sweep_each(
        arguments,
        lambda path: eviction.sweep(path, _NOTHING, heed_jobs=not arguments.force, dry_run=arguments.dry_run),
    )
    sweeping.show(sweeps, as_json=arguments.json)
    return int(any(sweep is None or sweep.kept for sweep in sweeps.values()))
