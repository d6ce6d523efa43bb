"""``safecache copy SOURCE... DESTINATION``, between caches, packs, the remote and registries; and ``diff`` of two."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from safecache.cli import EXIT_FINDINGS, UsageError, view
from safecache.cli.view import View, add_json, make_type, require_zstandard
from safecache.errors import ConfigError, PackRefusedError, RegistryError, SafecacheError
from safecache.packs import archive
from safecache.places import layout
from safecache.remote.client import Unavailable
from safecache.settings import config
from safecache.settings.settings import PACK, hide_password, is_pack
from safecache.settings.units import SIZES, parse_size, write_size
from safecache.store import entry_files
from safecache.tiers import levels
from safecache.upkeep import copies, packing
from safecache.upkeep.copies import Caches, Fate, Remote, Source, Step, Summary, Tell

__all__ = ["add_copy", "add_diff", "run_copy", "run_diff", "translate"]

_HERE = "here"
_REGISTRY = "oci://"
_MOST = "50G"


def add_diff(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    for name in ("A", "B"):
        parser.add_argument(name, help=f"cache directory or pack (NAME{PACK})")
    add_json(parser)


def add_copy(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    text = (
        f"cache directory, pack (NAME{PACK}), URL of a remote cache, {_REGISTRY}REGISTRY/REPOSITORY:TAG, or {_HERE!r} "
        f"(this environment's caches); the last is the destination, and a single PLACE is the destination of {_HERE!r}"
    )
    parser.add_argument("places", nargs="+", type=_parse_place, metavar="PLACE", help=text)
    parser.add_argument("--again", action="store_true", help="replace what the destination already has")
    group = parser.add_argument_group(f"with {_REGISTRY}")
    text = f"largest pack to fetch (default {_MOST})"
    group.add_argument("--max-size", type=make_type(parse_size, SIZES), default=_MOST, metavar="SIZE", help=text)
    text = "accept a registry without TLS, or with an unverified certificate"
    group.add_argument("--plain-http", action="store_true", help=text)
    add_json(parser)


def _parse_place(text: str) -> str:
    return text if "://" not in text or text.startswith(_REGISTRY) else view.parse_remote_url(text, "oci")


def translate(command: str, words: Sequence[str]) -> list[str]:
    """The arguments of copy that push, pull, pack, unpack or merge, with these, stands for.

    Exits as argparse does where they are none. Raises ConfigError where there is no remote.
    """
    parser = argparse.ArgumentParser(prog=f"safecache {command}", epilog="Deprecated: use safecache copy.")
    parser.add_argument("places", nargs="*", metavar="PLACE")
    parser.add_argument("-o", "--output", metavar=f"NAME{PACK}")
    parser.add_argument("--remote", metavar="URL")
    parser.add_argument("--max-size", default=_MOST)
    known, others = parser.parse_known_args(list(words))
    places, remote = known.places, known.remote or config.current().remote
    if command in ("push", "pull") and not any(place.startswith(_REGISTRY) for place in places[:1]):
        if remote is None:
            raise ConfigError("there is no remote cache: name one in SAFECACHE_TIERS, or give --remote URL")
        places.insert(0, remote)
    if command == "push":
        places = [*places[1:], places[0]]
    elif command in ("pack", "merge"):
        places.append(known.output or "")
    else:
        places += [known.output] if known.output else [] if len(places) > 1 else [_HERE]
    if command in ("pack", "merge") and not is_pack(places[-1]):
        parser.error(f"-o: the name of a pack ends in {PACK}, by which it is known")
    return [*(places if len(places) > 1 else [_HERE, *places]), *others, "--max-size", known.max_size]


def run_copy(arguments: argparse.Namespace) -> View:
    """Copy; 1 if anything was refused, or has failed. Raises SafecacheError or OSError."""
    *sources, to = arguments.places
    sources = [each for place in sources or [_HERE] for each in (_find_caches() if place == _HERE else [place])]
    if any(is_pack(place) or place.startswith(_REGISTRY) for place in arguments.places):
        require_zstandard()
    if to.startswith(_REGISTRY):
        return _push_pack(arguments, to, sources)
    if any(place.startswith(_REGISTRY) for place in sources):
        if len(sources) > 1:
            raise UsageError("of a registry one pack is copied at a time")
        return _pull_pack(arguments, sources[0], to)
    try:
        with _show_progress() as tell:
            found: list[Source] = [packing.open_source(place) for place in ([] if is_pack(to) else sources)]
            if is_pack(to):
                summary = packing.pack(sources, to, tell)
            else:
                destination = Remote.locate(to) if config.is_url(to) else Caches.locate(None if to == _HERE else to)
                summary = copies.copy(found, destination, tell, again=arguments.again)
    except Unavailable:
        shown = " or ".join(map(hide_password, filter(config.is_url, arguments.places)))
        raise SafecacheError(f"{shown} cannot be used now") from None
    elsewhere = sum(place.elsewhere for place in found if isinstance(place, Remote))
    return _view_summary(hide_password(to), summary, elsewhere)


def run_diff(arguments: argparse.Namespace) -> View:
    """Show what differs between two packs or caches; 1 if anything does. Raises SafecacheError or OSError."""
    require_zstandard()
    found, lines = list(packing.compare(arguments.A, arguments.B)), []
    for each in found:
        words = (("only in A", each.a), ("only in B", each.b), ("differ", each.differ))
        said = "; ".join(f"{word}: {', '.join(names)}" for word, names in words if names)
        lines.append(f"{each.name}: {said}")
    data = {"a": arguments.A, "b": arguments.B, "differences": [each._asdict() for each in found]}
    same = f"{arguments.A} and {arguments.B} hold the same."
    return View(data, lines or [same], EXIT_FINDINGS if found else 0)


def _find_caches() -> list[str]:
    """The caches that this environment uses, vLLM's too, as far as they exist."""
    environ = config.copy_environment()
    return [*levels.list_caches(environ), *filter(os.path.isdir, [layout.vllm_cache_dir(environ)])]


def _push_pack(arguments: argparse.Namespace, place: str, sources: list[str]) -> View:
    """Send one pack of these sources, or the pack that is the only one, to a registry."""
    from safecache.upkeep import oci

    to = oci.parse_reference(place)
    with tempfile.TemporaryDirectory() as directory:
        path, problems = next(iter(sources), ""), list[Step]()
        if len(sources) != 1 or not is_pack(path):
            path = os.path.join(directory, oci.FILE)
            with _show_progress() as tell:
                problems = packing.pack(sources, path, tell).problems
        found = archive.open_pack(path)
        if not found.groups:
            raise RegistryError(f"nothing is sent to {to}: there is nothing that verifies to pack")
        pushed = oci.push(to, path, found.manifest["made_with"], has_tls=not arguments.plain_http)
        size = os.path.getsize(path)
    data = {"destination": str(to), "reference": str(pushed), "groups": len(found.groups), "bytes": size}
    return _view_problems(data, [f"{to}: {len(found.groups)} packed ({write_size(size)})", str(pushed)], problems)


def _pull_pack(arguments: argparse.Namespace, place: str, to: str) -> View:
    """Fetch a pack from a registry, to keep it or to fill caches."""
    from safecache.upkeep import oci

    reference = oci.parse_reference(place)
    with oci.fetch(reference, arguments.max_size, has_tls=not arguments.plain_http) as (path, found):
        size = os.path.getsize(path)
        try:
            archive.open_pack(path)
            if not is_pack(to):
                caches = Caches.locate(None if to == _HERE else to)
                with _show_progress() as tell:
                    return _view_summary(str(found), copies.copy([packing.open_source(path)], caches, tell))
        except PackRefusedError as error:
            raise PackRefusedError(f"{reference} is refused: {error}") from error
        with open(path, "rb") as file:
            entry_files.write_stream(to, iter(partial(file.read, 1 << 20), b""), durably=True)
    data = {"destination": os.path.abspath(to), "reference": str(found), "bytes": size}
    return View(data, [f"{to}: {write_size(size)} of {found}"])


_FEW = 100


@contextmanager
def _show_progress() -> Iterator[Tell]:
    """Context of a function that advances a bar on a terminal, and else prints a line for each tenth that is done."""
    done = 0
    with view.show_progress(total=1, described="safecache copy") as (bar, task):

        def tell(number: int, step: Step | None) -> None:
            nonlocal done
            bar.update(task, total=number, advance=int(step is not None))
            done += step is not None
            if step is not None and bar.disable and number >= _FEW and done * 10 % number < 10:
                print(f"safecache copy: {done} of {number}", file=sys.stderr)

        yield tell


def _view_summary(shown: str, summary: Summary, elsewhere: int = 0) -> View:
    """Show the result of a copy. ``elsewhere``: number of bundles of other builds."""
    counts = {"copied" if fate is Fate.DONE else fate.value: summary.counts[fate] for fate in Fate}
    words = {what.replace(" ", "_"): number for what, number in counts.items()}
    counted = ", ".join(f"{number} {what}" for what, number in counts.items())
    others_there = f"; {elsewhere} there are of other builds" if elsewhere else ""
    return _view_problems(
        {"destination": shown, **words, "bytes": summary.size, "other_builds": elsewhere},
        [f"{shown}: {counted} ({write_size(summary.size)}){others_there}"],
        summary.problems,
    )


def _view_problems(data: dict[str, object], lines: list[str], problems: list[Step]) -> View:
    """Show the result of a copy, with the bundles that were refused or failed, if any."""
    rows = [{"name": step.name, "what": step.fate.value, "why": step.detail} for step in problems]
    lines = [*lines, *(f"{row['what']} {row['name']}: {row['why']}" for row in rows)]
    return View({**data, "problems": rows}, lines, EXIT_FINDINGS if problems else 0)
