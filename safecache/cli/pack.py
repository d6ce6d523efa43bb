"""``safecache pack``, ``unpack``, ``diff`` and ``merge``: caches as one file, which is carried, compared and joined."""

from __future__ import annotations

import argparse
import json
import os

from safecache.cli import EXIT_FINDINGS
from safecache.cli.arguments import DIRECTORY_HELP, add_json
from safecache.cli.remote import progress, show
from safecache.errors import ConfigError, printable
from safecache.places import layout
from safecache.settings import config, extras
from safecache.settings.settings import PACK
from safecache.tiers import levels
from safecache.upkeep import packing
from safecache.upkeep.copies import Caches

__all__ = ["add", "output", "run", "sources"]

_SOURCE = f"a cache directory, or a pack (NAME{PACK})"


def add(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of one of these commands."""
    command = parser.get_default("command")
    if command == "unpack":
        parser.add_argument("pack", metavar=f"NAME{PACK}", help="the pack")
        text = "Inductor's cache, or TRITON_CACHE_DIR; by default the caches that this environment uses"
        parser.add_argument("directory", nargs="?", metavar="DIR", help=text)
    elif command == "diff":
        parser.add_argument("first", metavar="A", help=_SOURCE)
        parser.add_argument("second", metavar="B", help=_SOURCE)
    else:
        text = f"{DIRECTORY_HELP}, and vLLM; or a pack" if command == "pack" else _SOURCE
        parser.add_argument("sources", nargs="*" if command == "pack" else "+", metavar="DIR", help=text)
        name = f"NAME{PACK}"
        parser.add_argument("-o", "--output", required=True, type=output, metavar=name, help="the pack to make")
    add_json(parser)


def output(text: str) -> str:
    """An argparse type: the name of a pack to write."""
    if not config.is_pack(text):
        raise argparse.ArgumentTypeError(f"the name of a pack ends in {PACK}, by which it is known")
    return text


def run(arguments: argparse.Namespace) -> int:
    """Run one of these commands; 1 if anything was refused, has failed or differs. Raises SafecacheError or OSError."""
    if not extras.is_installed("zstandard"):
        raise ConfigError(f"packs need zstandard: {extras.line('pack')}")
    if arguments.command == "diff":
        return _diff(arguments)
    with progress(arguments.command) as tell:
        if arguments.command == "unpack":
            place, summary = arguments.pack, packing.unpack(arguments.pack, Caches.locate(arguments.directory), tell)
        else:
            place, summary = arguments.output, packing.pack(arguments.sources or sources(), arguments.output, tell)
    show(arguments, place, summary)
    return EXIT_FINDINGS if summary.problems else 0


def sources() -> list[str]:
    """The caches that this environment uses, vLLM's too, as far as they exist."""
    environ = config.child_environment()
    return [*levels.existing_caches(environ), *filter(os.path.isdir, [layout.vllm_cache_dir(environ)])]


def _diff(arguments: argparse.Namespace) -> int:
    found = list(packing.compared(arguments.first, arguments.second))
    if arguments.json:
        rows = [{"name": each.name, "a": each.first, "b": each.second, "differ": each.both} for each in found]
        print(json.dumps({"a": arguments.first, "b": arguments.second, "differences": rows}))
    for each in [] if arguments.json else found:
        print(printable(f"{each.name}: {_said(each)}"))
    if not found and not arguments.json:
        print(f"{arguments.first} and {arguments.second} hold the same.")
    return EXIT_FINDINGS if found else 0


def _said(difference: packing.Difference) -> str:
    words = (("only in A", difference.first), ("only in B", difference.second), ("differ", difference.both))
    return "; ".join(f"{word}: {', '.join(names)}" for word, names in words if names)
