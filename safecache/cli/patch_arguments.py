"""The arguments of ``safecache patches``."""

from __future__ import annotations

import argparse

__all__ = ["COMMANDS", "add", "run"]

COMMANDS = ("patches",)
_ACTIONS = {
    "list": "which patches there are for the installed releases, and which are applied",
    "check": "likewise, and exit with 1 if one that is named, or any, does not fit",
    "apply": "apply those that are named, or all; if one does not fit, none",
    "revert": "take them back: the files are byte for byte as they were",
}


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the parser of this command."""
    patches = commands.add_parser("patches", help="the same behaviour as patches of the sources of torch and Triton")
    actions = patches.add_subparsers(dest="action", required=True, metavar="ACTION")
    for action, help in _ACTIONS.items():
        parser = actions.add_parser(action, help=help)
        parser.add_argument("names", nargs="*", metavar="NAME", help="of patches, such as verified-loads")
        parser.add_argument(
            "--target", metavar="SITE_PACKAGES", help="the directory that torch and triton lie in, if not the installed"
        )
        if action in ("list", "check"):
            parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Run the command and return its exit code. Raises SafecacheError or OSError."""
    from safecache.cli import patches

    return patches.run(arguments)
