"""``safecache push`` and ``pull``: with the remote cache, or of a pack with a registry of container images (oci://)."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from functools import partial
from typing import TYPE_CHECKING, Any

from safecache.cli import EXIT_FINDINGS, EXIT_USAGE, pack, remote
from safecache.cli.arguments import of
from safecache.errors import ConfigError, PackRefusedError, RegistryError, printable
from safecache.packs import archive
from safecache.settings import config, extras
from safecache.settings.settings import PACK
from safecache.settings.units import SIZES, parse_size, write_size
from safecache.store import entry_files
from safecache.upkeep import packing
from safecache.upkeep.copies import Caches, Step

if TYPE_CHECKING:
    from safecache.upkeep.oci import Reference

__all__ = ["SCHEME", "add", "add_registry", "pull", "push", "run"]

SCHEME = "oci://"
_FORM = f"{SCHEME}REGISTRY/REPOSITORY:TAG"
_MOST = "50G"


def add(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of one of these commands."""
    if parser.get_default("command") == "push":
        parser.epilog = (
            f"With {_FORM} before DIR, one pack of these caches, or the pack named in their place, goes there."
        )
        remote.add(parser)
        group = parser.add_argument_group(f"with {_FORM}")
    else:
        text = f"{_FORM} or …@sha256:…, in place of the remote cache"
        parser.add_argument("place", nargs="?", metavar=_FORM, help=text)
        remote.add(parser)
        group = parser.add_argument_group(f"with {_FORM}")
        text = "keep the pack there; its caches are filled only if DIR is given too"
        group.add_argument("-o", "--output", type=pack.output, metavar=f"NAME{PACK}", help=text)
    add_registry(group, is_pull=parser.get_default("command") == "pull")


def add_registry(group: Any, *, is_pull: bool) -> None:
    """Add what both ways to a registry need, and what only a pack from there needs."""
    if is_pull:
        text = f"of the pack (default {_MOST})"
        group.add_argument("--max-size", type=of(parse_size, SIZES), default=_MOST, metavar="SIZE", help=text)
    text = "use a registry without TLS, or whose certificate nobody vouches for"
    group.add_argument("--plain-http", action="store_true", help=text)


def run(arguments: argparse.Namespace) -> int:
    """Run one of these commands; 1 if anything was refused or has failed. Raises SafecacheError or OSError."""
    is_push = arguments.command == "push"
    place = next(iter(arguments.directories), "") if is_push else arguments.place or ""
    if place.startswith(SCHEME):
        if arguments.remote or getattr(arguments, "again", False):
            return _misused(arguments, f"--remote and --again are for a remote cache, and {SCHEME} is a registry")
        return push(arguments, place, arguments.directories[1:]) if is_push else pull(arguments, place)
    if any(getattr(arguments, name, None) for name in ("output", "plain_http")):
        return _misused(arguments, f"this is for a registry: name {_FORM}")
    if not is_push and arguments.directory is not None:
        return _misused(arguments, f"what is first of two is {_FORM}")
    if not is_push:
        arguments.directory = arguments.place
    return remote.run(arguments)


def _misused(arguments: argparse.Namespace, why: str) -> int:
    print(f"safecache {arguments.command}: {why}", file=sys.stderr)
    return EXIT_USAGE


def _parse(place: str) -> Reference:
    if not extras.is_installed("zstandard"):
        raise ConfigError(f"packs need zstandard: {extras.line('pack')}")
    from safecache.upkeep import oci

    return oci.parse_reference(place)


def push(arguments: argparse.Namespace, place: str, sources: list[str]) -> int:
    """Send one pack of these sources, or the pack that is the only one, to a registry; 1 if anything was refused.

    Raises SafecacheError or OSError.
    """
    from safecache.upkeep import oci

    to = _parse(place)
    with tempfile.TemporaryDirectory() as directory:
        path, problems = next(iter(sources), ""), list[Step]()
        if len(sources) != 1 or not config.is_pack(path):
            path = os.path.join(directory, oci.FILE)
            with remote.progress("push") as tell:
                problems = packing.pack(sources or pack.sources(), path, tell).problems
        found = archive.opened(path)
        if not found.groups:
            raise RegistryError(f"nothing is sent to {to}: there is nothing that verifies to pack")
        pushed = oci.push(to, path, found.manifest["made_with"], has_tls=not arguments.plain_http)
        size = os.path.getsize(path)
    if arguments.json:
        rows = [{"name": step.name, "what": step.fate.value, "why": step.detail} for step in problems]
        counts = {"groups": len(found.groups), "bytes": size}
        print(json.dumps({"remote": str(to), "reference": str(pushed), **counts, "problems": rows}))
    else:
        print(f"{to}: {len(found.groups)} packed ({write_size(size)})", pushed, sep="\n")
        for step in problems:
            print(printable(f"{step.fate.value} {step.name}: {step.detail}"))
    return EXIT_FINDINGS if problems else 0


def pull(arguments: argparse.Namespace, place: str) -> int:
    """Fetch a pack from a registry, to keep it or to fill caches; 1 if anything was refused.

    Raises SafecacheError or OSError.
    """
    from safecache.upkeep import oci

    reference = _parse(place)
    output, summary = arguments.output, None
    with oci.fetch(reference, arguments.max_size, has_tls=not arguments.plain_http) as (path, found):
        size = os.path.getsize(path)
        try:
            archive.opened(path)
            if arguments.directory is not None or output is None:
                with remote.progress("pull") as tell:
                    summary = packing.unpack(path, Caches.locate(arguments.directory), tell)
        except PackRefusedError as error:
            raise PackRefusedError(f"{reference} is refused: {error}") from error
        if output is not None:
            with open(path, "rb") as file:
                entry_files.write_stream(output, iter(partial(file.read, 1 << 20), b""), durably=True)
    if summary is not None:
        remote.show(arguments, str(found), summary)
    elif arguments.json:
        print(json.dumps({"remote": str(found), "bytes": size, "output": os.path.abspath(output)}))
    if output is not None and not arguments.json:
        print(printable(f"{output}: {write_size(size)} of {found}"))
    return EXIT_FINDINGS if summary is not None and summary.problems else 0
