"""``safecache preflight``: whether a cache that was filled elsewhere can be used here, before anything is started."""

from __future__ import annotations

import argparse
import json
import os

from safecache.cli import EXIT_FINDINGS
from safecache.cli.arguments import add_json
from safecache.errors import printable
from safecache.upkeep import preflight, warming
from safecache.upkeep.preflight import Difference

__all__ = ["add", "run"]


def add(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    text = "a cache directory, such as of an unpacked cache; by default the caches of this environment"
    parser.add_argument("directories", nargs="*", metavar="DIR", help=text)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """1 if anything misses by a difference, or nothing lies there. Raises SafecacheError or OSError."""
    directories = arguments.directories or warming.places()
    for directory in directories:
        os.scandir(directory).close()
    baked = preflight.collected(cache for directory in directories for cache in preflight.within(directory))
    found = preflight.differences(baked) if baked["groups"] else []
    misses = not baked["groups"] or any(each.misses for each in found)
    if arguments.json:
        stated = [each._asdict() | {"text": str(each)} for each in found]
        print(json.dumps({"groups": baked["groups"], "misses": misses, "differences": stated}))
    else:
        _print(baked["groups"], found)
    return EXIT_FINDINGS if misses else 0


def _print(groups: int, found: list[Difference]) -> None:
    for each in found:
        print(printable(f"{'misses' if each.misses else 'may miss'}: {each}"))
        print(printable(f"  {each.remedy}"))
    if not groups:
        print("nothing that is compiled lies there")
    elif not any(each.misses for each in found):
        print("every entry can hit here as far as can be told without compiling")
