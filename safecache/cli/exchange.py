"""``safecache push`` and ``pull``: with the remote cache, or of a pack with a registry of container images (oci://)."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from typing import TYPE_CHECKING, Any

from safecache.cli import EXIT_FINDINGS, EXIT_USAGE, pack, remote
from safecache.cli.arguments import of
from safecache.errors import ConfigError, PackRefusedError, RegistryError, printable
from safecache.packs import archive
from safecache.settings import config, extras
from safecache.settings.settings import PACK
from safecache.settings.units import SIZES, parse_size, write_size
from safecache.upkeep import packing
from safecache.upkeep.transfers import Fate, Summary

if TYPE_CHECKING:
    from safecache.upkeep.oci import Fetched
    from safecache.upkeep.registry import Reference, Registry

__all__ = ["add", "run"]

_SCHEME = "oci://"
_FORM = f"{_SCHEME}REGISTRY/REPOSITORY:TAG"
_MOST = "50G"


def add(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of one of these commands."""
    if parser.get_default("command") == "push":
        parser.epilog = (
            f"With {_FORM} before DIR, one pack of these caches, or the pack named in their place, goes there."
        )
        remote.add(parser)
        group = parser.add_argument_group(f"with {_FORM}")
        group.add_argument("--cosign", action="store_true", help="sign it as cosign does too, with our key (Ed25519)")
        text = "as an image that Kubernetes mounts as a volume and GKM unpacks, in place of an artifact"
        group.add_argument("--image", action="store_true", help=text)
    else:
        text = f"{_FORM} or …@sha256:…, in place of the remote cache"
        parser.add_argument("place", nargs="?", metavar=_FORM, help=text)
        remote.add(parser)
        group = parser.add_argument_group(f"with {_FORM}")
        text = "keep the pack there; its caches are filled only if DIR is given too"
        group.add_argument("-o", "--output", type=pack.output, metavar=f"NAME{PACK}", help=text)
        text = f"of the pack (default {_MOST})"
        group.add_argument("--max-size", type=of(parse_size, SIZES), default=_MOST, metavar="SIZE", help=text)
    group.add_argument("--plain-http", action="store_true", help="the registry has no TLS, such as one on this machine")
    text = "the certificates to trust, in place of those of REQUESTS_CA_BUNDLE or requests"
    group.add_argument("--ca", default="", metavar="FILE", help=text)


def run(arguments: argparse.Namespace) -> int:
    """Run one of these commands; 1 if anything was refused or has failed. Raises SafecacheError or OSError."""
    is_push = arguments.command == "push"
    place = next(iter(arguments.directories), "") if is_push else arguments.place or ""
    if place.startswith(_SCHEME):
        if arguments.remote or getattr(arguments, "again", False):
            return _misused(arguments, f"--remote and --again are for a remote cache, and {_SCHEME} is a registry")
        return _with_registry(arguments, place)
    if any(getattr(arguments, name, None) for name in ("cosign", "image", "output", "plain_http", "ca")):
        return _misused(arguments, f"this is for a registry: name {_FORM}")
    if not is_push and arguments.directory is not None:
        return _misused(arguments, f"what is first of two is {_FORM}")
    if not is_push:
        arguments.directory = arguments.place
    return remote.run(arguments)


def _misused(arguments: argparse.Namespace, why: str) -> int:
    print(f"safecache {arguments.command}: {why}", file=sys.stderr)
    return EXIT_USAGE


def _with_registry(arguments: argparse.Namespace, place: str) -> int:
    lacking = next((name for name in ("requests", "docker", "zstandard") if not extras.is_installed(name)), None)
    if lacking is not None:
        raise ConfigError(f"registries need {lacking}: {extras.line('oci')}")
    from safecache.upkeep import registry

    named = registry.parse(place)
    with registry.Registry(named.host, named.name, plain=arguments.plain_http, authorities=arguments.ca) as there:
        return (_push if arguments.command == "push" else _pull)(arguments, named, there)


def _push(arguments: argparse.Namespace, to: Reference, there: Registry) -> int:
    from safecache.upkeep import oci

    key = oci.signing_key() if arguments.cosign else None
    sources = arguments.directories[1:]
    with tempfile.TemporaryDirectory() as directory:
        path, summary = next(iter(sources), ""), None
        if len(sources) != 1 or not config.is_pack(path):
            path = os.path.join(directory, oci.FILE)
            with remote.progress("push") as tell:
                summary = packing.pack(sources or pack.sources(), path, tell)
        found = archive.opened(path)
        if not found.groups:
            raise RegistryError(f"nothing is sent to {to.shown}: there is nothing that verifies to pack")
        pushed = oci.push(to, path, found.manifest["made_with"], there, as_image=arguments.image)
    signature = oci.sign(to, pushed.digest, key, there) if key is not None else None
    _tell_pushed(arguments, {**pushed._asdict(), "groups": len(found.groups), "signature": signature}, to, summary)
    return EXIT_FINDINGS if summary is not None and summary.problems else 0


def _tell_pushed(arguments: argparse.Namespace, said: dict[str, Any], to: Reference, summary: Summary | None) -> None:
    problems = summary.problems if summary is not None else []
    if arguments.json:
        rows = [{"name": step.name, "what": step.fate.value, "why": step.detail} for step in problems]
        print(json.dumps({"remote": to.shown, **said, "problems": rows}))
        return
    sent = f"{write_size(said['size'])} sent" if said["size"] else Fate.THERE.value
    print(f"{to.shown}: {said['groups']} packed, {sent}")
    print(said["reference"])
    if said["signature"] is not None:
        print(f"signed for cosign: {to.host}/{to.name}:{said['signature']}")
    for step in problems:
        print(printable(f"{step.fate.value} {step.name}: {step.detail}"))


def _pull(arguments: argparse.Namespace, what: Reference, there: Registry) -> int:
    from safecache.upkeep import oci

    output = os.path.abspath(arguments.output) if arguments.output else None
    fills = arguments.directory is not None or output is None
    targets = pack.targets(arguments.directory)
    directory = os.path.dirname(output) if output else targets.inductor
    if output is None:
        os.makedirs(directory, mode=0o700, exist_ok=True)
    with oci.fetched(what, there, directory, arguments.max_size) as found:
        try:
            archive.opened(found.path)
            summary = None
            if fills:
                with remote.progress("pull") as tell:
                    summary = packing.unpack(found.path, targets, tell)
        except PackRefusedError as error:
            raise PackRefusedError(f"{what.shown} is refused: {error}") from error
        if output is not None:
            os.replace(found.path, output)
    _tell_pulled(arguments, found, what, summary, output)
    return EXIT_FINDINGS if summary is not None and summary.problems else 0


def _tell_pulled(
    arguments: argparse.Namespace, found: Fetched, what: Reference, summary: Summary | None, output: str | None
) -> None:
    shown = f"{what.host}/{what.name}@{found.digest}"
    if summary is not None:
        remote.show(arguments, shown, summary)
    elif arguments.json:
        print(json.dumps({"remote": shown, "bytes": found.size, "output": output}))
    if output is not None and not arguments.json:
        print(printable(f"{output}: {write_size(found.size)} of {shown}"))
