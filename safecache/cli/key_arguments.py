"""The arguments of the commands about keys, and of those that sign and verify entries."""

from __future__ import annotations

import argparse
import time

from safecache.cli.listing_arguments import DIRECTORY_HELP
from safecache.settings import units

__all__ = ["ENTRY_COMMANDS", "KEY_COMMANDS", "add"]

KEY_COMMANDS = ("keygen", "keys", "trust", "revoke")
ENTRY_COMMANDS = ("sign", "verify")
_DAY = 86400
_PATTERN_HELP = "the namespaces that it may supply, such as 'prod/*', where * stands for any letters, / too (default *)"


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the parsers of these commands."""
    _add_keygen(commands)

    keys = commands.add_parser("keys", help="list the keys that this process seals with and trusts")
    keys.add_argument("--json", action="store_true", help="print JSON")

    trust = commands.add_parser("trust", help="take the entries of a key from now on")
    trust.add_argument("file", metavar="FILE", help="a key file, a PEM file of an Ed25519 key, or - for standard input")
    trust.add_argument("--name", help="what to call it, in place of the name in the file")
    trust.add_argument("--namespace", nargs="+", metavar="PATTERN", help=_PATTERN_HELP)

    revoke = commands.add_parser("revoke", help="take no entry of a key any more, whenever it was sealed")
    revoke.add_argument("id", metavar="ID", help="its id, or the beginning of it that no other key has")
    revoke.add_argument("--reason", default="", help="why, kept in its file")

    sign = commands.add_parser("sign", help="seal with our key the entries that verify now, under any trusted key")
    sign.add_argument("paths", nargs="+", metavar="FILE", help="a cache directory, or an entry in one")
    sign.add_argument("--json", action="store_true", help="print JSON")

    verify = commands.add_parser("verify", help="say which entries would be used, and why not the others")
    verify.add_argument("paths", nargs="*", metavar="FILE", help=f"an entry, or {DIRECTORY_HELP}")
    verify.add_argument("--json", action="store_true", help="print JSON")


def _add_keygen(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    keygen = commands.add_parser("keygen", help="make a key: a MAC key, or one whose public part verifies alone")
    keygen.add_argument("--ed25519", action="store_true", help="make an Ed25519 key (needs safecache[sign])")
    keygen.add_argument("--name", default="", help="what to call it in lists")
    keygen.add_argument("--expires", type=_expiry, metavar="90d|DATE", help="when it ends: days from now, or a date")
    keygen.add_argument("--namespace", nargs="+", metavar="PATTERN", help=_PATTERN_HELP)
    keygen.add_argument("--out", metavar="FILE", help="where to write it; by default, into the keyring directory")
    keygen.add_argument("--public", metavar="FILE", help="where to write its public part too (Ed25519)")


def _expiry(text: str) -> float:
    now = time.time()
    try:
        end = now + int(text[:-1]) * _DAY if text.endswith("d") else units.parse(text)
        units.write(end)
    except (ValueError, OverflowError, OSError):
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number of days (90d) nor a date of RFC 3339") from None
    if end <= now:
        raise argparse.ArgumentTypeError(f"{text} is not in the future")
    return end
