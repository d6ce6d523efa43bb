"""``safecache push`` and ``pull``: a cache is sent to the remote one, or filled from there."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress

from safecache.cli import EXIT_FINDINGS
from safecache.cli.arguments import DIRECTORY_HELP, add_json, add_remote, remote_of
from safecache.errors import printable
from safecache.remote.client import Unavailable
from safecache.settings import config
from safecache.settings.units import write_size
from safecache.tiers import levels
from safecache.upkeep import copies
from safecache.upkeep.copies import Caches, Directory, Fate, Step, Summary, Tell
from safecache.upkeep.remote_contents import Remote

__all__ = ["add", "progress", "run", "show"]

_DONE = {"push": "sent", "pull": "fetched", "pack": "packed", "merge": "packed", "unpack": "unpacked", "copy": "copied"}


def add(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of one of these commands."""
    if parser.get_default("command") == "push":
        parser.add_argument("directories", nargs="*", metavar="DIR", help=DIRECTORY_HELP)
        parser.add_argument("--again", action="store_true", help="also what is there already, in place of that")
    else:
        text = "a cache directory; by default those that torch and Triton use under this environment"
        parser.add_argument("directory", nargs="?", metavar="DIR", help=text)
    add_remote(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run one of these commands; 1 if anything was refused or has failed. Raises SafecacheError or OSError."""
    remote = remote_of(arguments)
    try:
        with progress(arguments.command) as tell:
            place = Remote(remote)
            if arguments.command == "push":
                directories = arguments.directories or levels.existing_caches(config.child_environment())
                summary = copies.copy(list(map(Directory, directories)), place, tell, again=arguments.again)
            else:
                summary = copies.copy([place], Caches.locate(arguments.directory), tell)
    except Unavailable:
        print(f"safecache {arguments.command}: {remote.shown} cannot be used now", file=sys.stderr)
        return EXIT_FINDINGS
    show(arguments, remote.shown, summary, place.elsewhere)
    return EXIT_FINDINGS if summary.problems else 0


@contextmanager
def progress(command: str) -> Iterator[Tell]:
    """Context of a function that advances a bar on a terminal, and else prints a line for each tenth that is done."""
    console, done = Console(stderr=True), 0
    columns = (*Progress.get_default_columns(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"safecache {command}", total=None)

        def tell(number: int, step: Step | None) -> None:
            nonlocal done
            progress.update(task, total=number, advance=int(step is not None))
            done += step is not None
            if step is not None and not console.is_terminal and number >= _FEW and done * 10 % number < 10:
                print(f"safecache {command}: {done} of {number}", file=sys.stderr)

        yield tell


# So many take a moment.
_FEW = 100


def show(arguments: argparse.Namespace, shown: str, summary: Summary, elsewhere: int = 0) -> None:
    """Print what became of it; ``shown``: the remote, or the pack; ``elsewhere``: how much there is of other builds."""
    done = _DONE[arguments.command]
    counts = {done if fate is Fate.DONE else fate.value: summary.counts[fate] for fate in Fate}
    problems = [{"name": step.name, "what": step.fate.value, "why": step.detail} for step in summary.problems]
    if arguments.json:
        words = {what.replace(" ", "_"): number for what, number in counts.items()}
        others = {"bytes": summary.size, "other_builds": elsewhere, "problems": problems}
        where = {"push": "remote", "pull": "remote", "copy": "destination"}.get(arguments.command, "pack")
        print(json.dumps({where: shown, **words, **others}))
        return
    counted = ", ".join(f"{number} {what}" for what, number in counts.items())
    others_there = f"; {elsewhere} there are of other builds" if elsewhere else ""
    print(printable(f"{shown}: {counted} ({write_size(summary.size)}){others_there}"))
    for step in summary.problems:
        print(printable(f"{step.fate.value} {step.name}: {step.detail}"))
