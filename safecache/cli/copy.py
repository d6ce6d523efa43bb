"""``safecache copy SOURCE... DESTINATION``: between caches, packs, the remote and registries, whichever way."""

from __future__ import annotations

import argparse
import sys

from safecache.cli import EXIT_FINDINGS, EXIT_USAGE, exchange, pack, remote
from safecache.cli.arguments import add_json
from safecache.errors import ConfigError, SafecacheError
from safecache.remote.client import Unavailable
from safecache.settings import config, extras
from safecache.settings.settings import PACK, without_password
from safecache.upkeep import copies, packing
from safecache.upkeep.copies import Caches, Source
from safecache.upkeep.remote_contents import Remote

__all__ = ["add", "run"]

_HERE = "here"


def add(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    text = (
        f"a cache directory, a pack (NAME{PACK}), the URL of a remote cache, oci://…, or {_HERE!r}, the caches of this "
        f"environment; the last is the destination, and alone it is that of {_HERE!r}"
    )
    parser.add_argument("places", nargs="+", metavar="PLACE", help=text)
    parser.add_argument("--again", action="store_true", help="also what is there already, in place of that")
    exchange.add_registry(parser.add_argument_group("with oci://"), is_pull=True)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Copy; 1 if anything was refused or has failed. Raises SafecacheError or OSError."""
    *sources, to = arguments.places
    if any(place.startswith(exchange.SCHEME) for place in arguments.places):
        return _with_registry(arguments, sources, to)
    with_packs = [place for place in arguments.places if config.is_pack(place)]
    if with_packs and not extras.is_installed("zstandard"):
        raise ConfigError(f"packs need zstandard: {extras.line('pack')}")
    places = [each for place in sources or [_HERE] for each in (pack.sources() if place == _HERE else [place])]
    try:
        with remote.progress("copy") as tell:
            if config.is_pack(to):
                summary = packing.pack(places, to, tell)
            else:
                found: list[Source] = [packing.open_source(place) for place in places]
                destination = Remote.locate(to) if config.is_url(to) else Caches.locate(None if to == _HERE else to)
                summary = copies.copy(found, destination, tell, again=arguments.again)
    except Unavailable:
        shown = " or ".join(map(without_password, filter(config.is_url, arguments.places)))
        raise SafecacheError(f"{shown} cannot be used now") from None
    remote.show(arguments, without_password(to), summary)
    return EXIT_FINDINGS if summary.problems else 0


def _with_registry(arguments: argparse.Namespace, sources: list[str], to: str) -> int:
    if to.startswith(exchange.SCHEME):
        return exchange.push(arguments, to, [place for place in sources if place != _HERE])
    if len(sources) != 1:
        print("safecache copy: of a registry one pack is copied at a time", file=sys.stderr)
        return EXIT_USAGE
    arguments.output = to if config.is_pack(to) else None
    arguments.directory = None if config.is_pack(to) or to == _HERE else to
    return exchange.pull(arguments, sources[0])
