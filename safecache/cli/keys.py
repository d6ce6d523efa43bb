"""``safecache keys``, ``adopt``, ``sign`` and ``verify``: keys, and what is sealed with them."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from safecache.cli import UsageError, view
from safecache.cli.view import DIRECTORY_HELP, Heading, Table, View, add_json
from safecache.errors import EntryRefusedError, KeyringError
from safecache.places import layout
from safecache.places.layout import CodeFile, Location
from safecache.ports import Published, observe
from safecache.settings import config, units
from safecache.settings.units import write_count
from safecache.signing import key_changes, key_files, keyring, keys
from safecache.signing.keys import ANY_NAMESPACE, Key
from safecache.tiers import levels
from safecache.upkeep import limits
from safecache.upkeep.audit import Resealing, adopt, audit, countersign

__all__ = ["add_adopt", "add_keys", "add_sign", "add_verify", "run_adopt", "run_keys", "run_sign", "run_verify"]

_DATES = ("created", "expires", "revoked")
_HEADINGS = ("id", "algorithm", "name", "seals", *_DATES, "namespaces")
_MAXIMUM_INPUT = 64 * 1024
_DAY = 86400
_PATTERN_HELP = "namespaces that the key may supply, such as 'prod/*'; * stands for any letters, / too (default *)"


def add_keys(parser: argparse.ArgumentParser) -> None:
    """Add its arguments, and its actions."""
    text = "print the public part of a key as PEM, by default of the sealing key (Ed25519)"
    parser.add_argument("--pem", nargs="?", const="", metavar="ID", help=text)
    add_json(parser)
    parser.set_defaults(act=_list_keys)
    actions = parser.add_subparsers(metavar="ACTION", help="without one, list the sealing key and the trusted keys")
    new = actions.add_parser("new", help="make a MAC key, or with --ed25519 a key pair")
    new.add_argument("--ed25519", action="store_true", help="make an Ed25519 key (needs safecache[sign])")
    new.add_argument("--name", default="", help="key name")
    new.add_argument("--expires", type=_parse_expiry, metavar="90d|DATE", help="expiry: days from now, or a date")
    new.add_argument("--namespace", nargs="+", metavar="PATTERN", help=_PATTERN_HELP)
    new.add_argument("--out", metavar="FILE", help="output file; by default in the keyring directory")
    new.add_argument("--public", metavar="FILE", help="output file for the public part (Ed25519)")
    new.set_defaults(act=_make_key)
    trust = actions.add_parser("trust", help="trust a key: accept what it seals")
    trust.add_argument("file", metavar="FILE", help="key file, PEM file of an Ed25519 key, or - for standard input")
    trust.add_argument("--name", help="key name, instead of the name in the file")
    trust.add_argument("--namespace", nargs="+", metavar="PATTERN", help=_PATTERN_HELP)
    trust.set_defaults(act=_trust_key)
    revoke = actions.add_parser("revoke", help="refuse every entry sealed by a key, old ones included")
    revoke.add_argument("id", metavar="ID", help="key id or unique prefix")
    revoke.add_argument("--reason", default="", help="reason, stored in the key file")
    revoke.set_defaults(act=_revoke_key)


def _parse_expiry(text: str) -> float:
    now = time.time()
    try:
        end = now + int(text[:-1]) * _DAY if text.endswith("d") else units.parse_time(text)
        units.write_time(end)
    except (ValueError, OverflowError, OSError):
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number of days (90d) nor a date of RFC 3339") from None
    if end <= now:
        raise argparse.ArgumentTypeError(f"{text} is not in the future")
    return end


def run_keys(arguments: argparse.Namespace) -> View:
    """Run one of its actions. Raises SafecacheError or OSError."""
    act: Callable[[argparse.Namespace], View] = arguments.act
    return act(arguments)


def _make_key(arguments: argparse.Namespace) -> View:
    if arguments.public and not arguments.ed25519:
        raise UsageError("--public needs --ed25519: a MAC key has no public part")
    key = key_changes.generate(ed25519=arguments.ed25519)._replace(
        name=arguments.name, expires=arguments.expires, namespaces=tuple(arguments.namespace or ANY_NAMESPACE)
    )
    # The public part first: if it cannot be written, no private part is left without it.
    if arguments.public:
        key_files.save(os.path.abspath(arguments.public), key.extract_public())
    path = os.path.abspath(arguments.out) if arguments.out else key_changes.trust(key)
    if arguments.out:
        key_files.save(path, key)
    lines = [f"{key.id.hex()} {path}"]
    lines += [f"public part: {os.path.abspath(arguments.public)}"] if arguments.public else []
    return View(None, [*lines, f"To seal with it: export SAFECACHE_KEY_FILE={path}"])


def _trust_key(arguments: argparse.Namespace) -> View:
    if arguments.file == "-":
        key = key_changes.read_candidate(None, sys.stdin.buffer.read(_MAXIMUM_INPUT))
    else:
        key = key_changes.read_candidate(os.path.abspath(arguments.file))
    if arguments.name is not None:
        key = key._replace(name=arguments.name)
    if arguments.namespace:
        key = key._replace(namespaces=tuple(arguments.namespace))
    path = key_changes.trust(key)
    key = key_files.read(path, forbidden=0o077)  # as it was merged
    namespaces = " ".join(key.namespaces)
    return View(None, [f"{key.id.hex()} {path}: {key.algorithm.value}, {_get_state(key)}, for namespaces {namespaces}"])


def _revoke_key(arguments: argparse.Namespace) -> View:
    key = key_changes.find(arguments.id)
    sealing = keyring.current(tell=False).signing
    path = key_changes.revoke(key, arguments.reason)
    lines = [f"{key.id.hex()} {'was revoked already' if key.revoked is not None else 'is revoked'}: {path}"]
    if sealing is not None and sealing.id == key.id:
        lines.append(f"Nothing is sealed here now: {keyring.current(tell=False).problem}.")
    return View(None, lines)


def _list_keys(arguments: argparse.Namespace) -> View:
    if arguments.pem is not None:
        key = key_changes.find(arguments.pem) if arguments.pem else keyring.sealing_key()
        public, problem = key.extract_public().public, keys.find_problem()
        if problem is not None:
            raise KeyringError(problem)
        return View(None, keys.write_pem(public).splitlines())
    ring = keyring.current(tell=False)
    sealing = ring.signing.id if ring.signing is not None else None
    rows = [_make_row(key) | {"sealing": key.id == sealing} for _, key in sorted(ring.trusted.items())]
    data = {
        "keyring": keyring.find_directory(),
        "namespace": config.current().namespace,
        "sealing": sealing.hex() if sealing is not None else None,
        "problem": ring.problem,
        "keys": rows,
        "problems": list(ring.problems),
    }
    text = [Table([Heading(name) for name in _HEADINGS], map(_format_cells, rows))]
    refused = [f"Refused: {problem}." for problem in ring.problems]
    nothing = [f"Nothing is sealed: {ring.problem}."] if ring.problem else []
    return View(data, [*text, *nothing, *refused], int(bool(ring.problems)))


def _make_row(key: Key) -> dict[str, Any]:
    times = {"created": key.created, "expires": key.expires, "revoked": key.revoked}
    return {
        "id": key.id.hex(),
        "algorithm": key.algorithm.value,
        "name": key.name,
        "can_seal": key.can_seal and key.find_objection(time.time()) is None,
        "state": _get_state(key),
        **{name: None if moment is None else units.write_time(moment) for name, moment in times.items()},
        "revoked_reason": key.why_revoked,
        "namespaces": list(key.namespaces),
    }


def _get_state(key: Key) -> str:
    objection = key.find_objection(time.time())
    return "trusted" if objection is None else objection.value


def _format_cells(row: dict[str, Any]) -> list[str]:
    seals = "now" if row["sealing"] else "could" if row["can_seal"] else "no"
    days = ((row[name] or "")[: len("2000-01-01")] for name in _DATES)
    cells = (row["id"], row["algorithm"], row["name"], seals, *days, " ".join(row["namespaces"]))
    return [cell or "-" for cell in cells]


def add_adopt(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    what = "cache directory, such as $TORCHINDUCTOR_CACHE_DIR, or a package (.pt2)"
    parser.add_argument("directory", metavar="DIR", help=what)
    add_json(parser)


def add_sign(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    parser.add_argument("paths", nargs="+", metavar="FILE", help="cache directory, or an entry in one")
    add_json(parser)


def add_verify(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    parser.add_argument("paths", nargs="*", metavar="FILE", help=f"an entry, or a {DIRECTORY_HELP}")
    add_json(parser)


def run_adopt(arguments: argparse.Namespace) -> View:
    """Seal what lies there; 1 if an entry was skipped. Raises SafecacheError or OSError."""
    observe(Published, limits.keep)
    return _view_sealing(adopt(arguments.directory))


def run_sign(arguments: argparse.Namespace) -> View:
    """Seal what verifies; 1 if an entry was skipped. Raises SafecacheError or OSError."""
    observe(Published, limits.keep)
    return _view_sealing(countersign(*_find_files(arguments.paths)))


def run_verify(arguments: argparse.Namespace) -> View:
    """Judge it; 1 if something would be refused. Raises SafecacheError or OSError."""
    locations, code = _find_files(arguments.paths or levels.list_caches(config.copy_environment()))
    with view.show_progress(total=len(locations) + len(code), described="verifying") as (bar, task):
        outcomes, refused = audit(locations, code, lambda: bar.advance(task))
    counts = "".join(f", {count} {outcome}" for outcome, count in sorted(outcomes.items()))
    lines = [f"{write_count(len(locations), 'entry', 'entries')}, {write_count(len(code), 'file')} of code{counts}"]
    lines += [f"refused {path}: {evidence} [{reason}]" for path, reason, evidence in refused]
    data = {"entries": len(locations), "code": len(code), "outcomes": outcomes}
    return View({**data, "refused": [each._asdict() for each in refused]}, lines, int(bool(refused)))


def _find_files(paths: list[str]) -> tuple[list[Location], list[CodeFile]]:
    """The entries and the files of code there. Raises as _locate() does.

    All paths are checked before the first change, so that a mistyped one does not leave half of the work done.
    """
    locations = [location for path in paths for location in _locate_entries(path)]
    return locations, [
        file for path in paths if os.path.isdir(path) for file in layout.walk_code(os.path.abspath(path))
    ]


def _locate_entries(path: str) -> Iterator[Location]:
    """The entries below ``path``, or the one there. Raises OSError, and EntryRefusedError for a file in no cache."""
    if os.path.isdir(path):
        os.scandir(path).close()
        yield from layout.walk(path)
        return
    os.lstat(path)
    location = layout.locate(path)
    if location is None:
        raise EntryRefusedError(f"{path} is in no cache directory, so its kind and cache key are unknown")
    yield location


def _view_sealing(result: Resealing) -> View:
    """Show what was sealed; 1 if an entry was skipped."""
    already = write_count(result.already_sealed, "was", "were")
    lines = [f"{write_count(result.sealed, 'file')} sealed, {already} sealed already."]
    lines += [f"skipped {path}: {reason}" for path, reason in result.skipped]
    return View(result._asdict(), lines, int(bool(result.skipped)))
