"""``safecache patches``: list, check, apply or revert the patches of torch's and Triton's sources."""

from __future__ import annotations

import argparse
import json

from safecache.cli import tables
from safecache.cli.arguments import add_json
from safecache.cli.tables import Heading
from safecache.errors import printable
from safecache.source_patches import sites
from safecache.source_patches.sites import State

__all__ = ["add", "run"]

_HEADINGS = (
    Heading("package"),
    Heading("release"),
    Heading("patch"),
    Heading("state"),
    Heading("promise", folds=True),
)
_KEYS = (
    "torch and Triton hash their own sources into the keys of their caches: what was compiled before is compiled once"
    " more, and only processes with the same patches share a cache."
)


_ACTIONS = {
    "list": "which patches there are for the installed releases, and which are applied",
    "check": "likewise, and exit with 1 if one that is named, or any, does not fit",
    "apply": "apply those that are named, or all; if one does not fit, none",
    "revert": "take them back: the files are byte for byte as they were",
}


def add(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for action, help in _ACTIONS.items():
        of_it = actions.add_parser(action, help=help)
        of_it.add_argument("names", nargs="*", metavar="NAME", help="of patches, such as verified-loads")
        of_it.add_argument(
            "--target", metavar="SITE_PACKAGES", help="the directory that torch and triton lie in, if not the installed"
        )
        if action in ("list", "check"):
            add_json(of_it)


def run(arguments: argparse.Namespace) -> int:
    """Run one of its actions; 1 if a checked patch does not fit. Raises SafecacheError or OSError, changing nothing."""
    found = sites.find(arguments.target)
    if arguments.action in ("list", "check"):
        states = sites.states(found, arguments.names)
        _show(found, states, as_json=arguments.json)
        return int(arguments.action == "check" and not (states and all(state.fits for state in states)))
    act = sites.apply if arguments.action == "apply" else sites.revert
    changed = act(found, arguments.names)
    for path in changed:
        print(printable(path))
    done = "patched" if arguments.action == "apply" else "reverted"
    print(f"{len(changed)} files {done}" if changed else "nothing to do")
    if changed:
        print(_KEYS)
    return 0


def _show(found: list[sites.Site], states: list[State], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"patches": [_report(state) for state in states]}))
        return
    if states:
        rows = ((s.site.package, s.site.release, s.patch.name, s.state, s.patch.promise) for s in states)
        tables.show(_HEADINGS, rows)
    for site in found:
        if not site.patches:
            print(f"there is no patch for {site.package} {site.release}")
    for state in states:
        if state.reason:
            print(printable(f"{state.site.package} {state.patch.name}: {state.reason}"))


def _report(state: State) -> dict[str, object]:
    return {
        "package": state.site.package,
        "release": state.site.release,
        "directory": state.site.directory,
        "patch": state.patch.name,
        "promise": state.patch.promise,
        "state": state.state,
        "reason": state.reason,
        "files": sorted(state.patch.edits),
    }
