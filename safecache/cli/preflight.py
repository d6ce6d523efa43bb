"""``safecache doctor --for``: whether a cache that was filled elsewhere can be used here, before a start."""

from __future__ import annotations

import argparse
import json
import os

from safecache.cli import EXIT_FINDINGS
from safecache.cli.arguments import require_zstandard
from safecache.errors import PackRefusedError, printable
from safecache.packs import archive
from safecache.settings import config
from safecache.upkeep import preflight, warming
from safecache.upkeep.preflight import Difference

__all__ = ["run"]


def run(arguments: argparse.Namespace) -> int:
    """1 if anything misses by a difference, or nothing lies there. Raises SafecacheError or OSError."""
    groups, found = 0, list[Difference]()
    packs = [source for source in arguments.sources if config.is_pack(source)]
    directories = [source for source in arguments.sources if source not in packs]
    for pack in packs:
        count, differences = _of_pack(pack)
        groups, found = groups + count, [*found, *differences]
    if directories or not packs:
        count, differences = _of_directories(directories or warming.places())
        groups, found = groups + count, [*found, *differences]
    misses = not groups or any(each.misses for each in found)
    if arguments.json:
        stated = [each._asdict() | {"text": str(each)} for each in found]
        print(json.dumps({"groups": groups, "misses": misses, "differences": stated}))
    else:
        _print(groups, found)
    return EXIT_FINDINGS if misses else 0


def _of_pack(path: str) -> tuple[int, list[Difference]]:
    """How many groups it has, and what differs; nothing that it says counts before its seal has been verified."""
    require_zstandard()
    try:
        manifest = archive.opened(path).manifest
    except PackRefusedError as error:
        return 1, [Difference("the pack", "sealed there", str(error), "A server would not use it either.")]
    if not manifest.get("baked"):
        return len(manifest["groups"]), [preflight.UNRECORDED]
    return len(manifest["groups"]), preflight.differences(manifest["baked"], manifest.get("made_with"))


def _of_directories(directories: list[str]) -> tuple[int, list[Difference]]:
    for directory in directories:
        os.scandir(directory).close()
    baked = preflight.collected(cache for directory in directories for cache in preflight.within(directory))
    return baked["groups"], preflight.differences(baked) if baked["groups"] else []


def _print(groups: int, found: list[Difference]) -> None:
    for each in found:
        print(printable(f"{'misses' if each.misses else 'may miss'}: {each}"))
        print(printable(f"  {each.remedy}"))
    if not groups:
        print("nothing that is compiled lies there")
    elif not any(each.misses for each in found):
        print("every entry can hit here as far as can be told without compiling")
