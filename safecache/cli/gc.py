"""``safecache gc``: brings caches within their limits. What is published starts it too, by itself."""

from __future__ import annotations

import argparse
import os
import sys

from safecache.cli import sweeping
from safecache.settings import config
from safecache.upkeep import eviction
from safecache.upkeep.eviction import Limits

__all__ = ["run"]


def run(arguments: argparse.Namespace) -> int:
    """Sweep each directory; 1 if one is still beyond a limit. Raises SafecacheError or OSError."""
    if arguments.quiet:
        os.nice(19)
    settings = config.current()
    limits = Limits(
        arguments.max_bytes or settings.max_bytes,
        arguments.max_files or settings.max_files,
        arguments.max_age or settings.max_age,
    )
    if limits == Limits():
        print(
            "safecache gc: no limit is set, by an option or SAFECACHE_MAX_BYTES, _MAX_FILES, _MAX_AGE", file=sys.stderr
        )
    sweeps = sweeping.sweep_each(arguments, lambda path: eviction.sweep(path, limits, dry_run=arguments.dry_run))
    if not arguments.quiet:
        sweeping.show(sweeps, as_json=arguments.json)
    return int(any(sweep is not None and sweep.kept for sweep in sweeps.values()))
