"""The command line, ``safecache`` and ``python -m safecache``; and of its commands ``run`` and ``help``."""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from safecache._version import __version__
from safecache.cli import EXIT_FINDINGS, EXIT_USAGE, NotRunError, UsageError
from safecache.errors import ConfigError, SafecacheError, printable
from safecache.files import stamps
from safecache.settings import config
from safecache.settings.config import EXIT_CONFIG

if TYPE_CHECKING:
    from safecache.cli.view import View

__all__ = ["add_help", "add_run", "environment_for_children", "main", "run_help", "run_run"]

# The commands by purpose: for each its module, imported only when the command runs, and its help text. The module has
# functions add_COMMAND, which adds its arguments, and run_COMMAND.
_GROUPS = {
    "use": {
        "run": ("main", "run a command with safecache active in it and in its children"),
        "warm": ("warm", "run a command until its caches are filled, and say what would still miss"),
        "demo": ("demo", "a real model, cold and warm, and what faults do to stock torch and to us"),
        "help": ("main", "the reference: list its pages, or show one, such as settings"),
    },
    "look": {
        "status": ("doctor", "import torch's cache modules and say what the hooks do there"),
        "doctor": ("doctor", "look for what keeps caches from working here, and say what to do"),
        "ls": ("ls", "list what lies in caches: kernels and graphs, their size, age, build, signer"),
        "show": ("ls", "tell all about one of them: its build, files, signer, and if it is used"),
        "stats": ("stats", "say what the processes of a run have looked up, and why it was missed"),
        "explain": ("stats", "say why lookups missed: which parts of which key differ"),
    },
    "keys": {
        "keys": ("keys", "list the keys that this process seals with and trusts; make, trust or revoke one"),
        "adopt": ("keys", "seal the entries of a private cache directory, once, on your word"),
        "sign": ("keys", "seal with our key the entries that verify now, under any trusted key"),
        "verify": ("keys", "say which entries would be used, and why not the others"),
    },
    "upkeep": {
        "gc": ("gc", "bring caches within their limits: the least recently used goes first"),
        "quarantine": ("gc", "list, show, restore or remove what is in quarantine"),
        "copy": ("copy", "have in a cache, a pack, the remote or a registry what others have and it lacks"),
        "diff": ("copy", "tell what differs between two packs or caches"),
        "forget": ("gc", "have kernels compiled again that have crashed Triton's compiler"),
    },
}
_COMMANDS = {command: said for group in _GROUPS.values() for command, said in group.items()}
# Commands of before, for one release: the words that they stand for.
_ALIASES = {
    "du": ("ls", "--sum"),
    "clean": ("gc", "--all"),
    "preflight": ("doctor", "--for"),
    "report": ("stats", "-o", "safecache-report.html"),
    "keygen": ("keys", "new"),
    "trust": ("keys", "trust"),
    "revoke": ("keys", "revoke"),
}
# Commands that copy has taken the place of, for one release.
_OF_COPY = ("push", "pull", "pack", "unpack", "merge")


def _overview() -> argparse.ArgumentParser:
    groups = []
    for group, commands in _GROUPS.items():
        groups += [f"{group}:", *(f"  {command:<12}{what}" for command, (_, what) in commands.items()), ""]
    codes = (
        "exit codes: 0 fine, 1 findings or failure, 2 usage, 78 a setting with a bad value; of `run`, and of `warm` if"
    )
    codes += " CMD fails: CMD's own"
    parser = argparse.ArgumentParser(
        prog="safecache",
        usage="safecache [-h] [--version] COMMAND ...",
        description="Makes the compile caches under torch.compile safe to rely on in production.",
        epilog="\n".join([*groups, codes]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"safecache {__version__}")
    parser.add_argument("command", metavar="COMMAND", choices=_COMMANDS, help="one of these, each with a --help:")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0] in _ALIASES:
        words[:1] = _ALIASES[words[0]]
    is_unknown = bool(words) and words[0] not in {*_COMMANDS, *_OF_COPY} and words[0][:1] != "-"
    for near in difflib.get_close_matches(words[0], _COMMANDS, 1) if is_unknown else ():
        print(printable(f"safecache: there is no command {words[0]!r}: did you mean {near!r}?"), file=sys.stderr)
        return EXIT_USAGE
    is_of_copy = bool(words) and words[0] in _OF_COPY
    command: str = words[0] if is_of_copy else _overview().parse_args(words[:1]).command
    name = "copy" if is_of_copy else command
    module_name, what = _COMMANDS[name]
    module = importlib.import_module(f"safecache.cli.{module_name}")
    parser = argparse.ArgumentParser(prog=f"safecache {command}", description=f"{what[0].upper()}{what[1:]}.")
    getattr(module, f"add_{name}")(parser)
    try:
        arguments = parser.parse_args(module.translate(command, words[1:]) if is_of_copy else words[1:])
        if command != "doctor":  # doctor reports bad settings as findings
            config.current()
        if command not in ("doctor", "status"):  # which say what the settings are
            config.enforce()
        with stamps.suspended():
            code: int = getattr(module, f"run_{name}")(arguments).show(as_json=getattr(arguments, "json", False))
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader, such as `| head`, is gone. Flushing the rest of the buffer at exit would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except ConfigError as error:
        print(f"safecache: {error}", file=sys.stderr)
        return EXIT_CONFIG
    except (SafecacheError, OSError) as error:
        print(printable(f"safecache {command}: {error}"), file=sys.stderr)
        return getattr(error, "exit_code", EXIT_FINDINGS)
    except KeyboardInterrupt:
        return 130


def add_help(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    parser.add_argument("topic", nargs="?", metavar="TOPIC", help="the page")


def run_help(arguments: argparse.Namespace) -> View:
    """Show a page of safecache/guide, or the list of pages. Without a terminal, the page is its source."""
    from importlib.resources import files

    from rich.console import Console
    from rich.markdown import Markdown

    from safecache.cli.view import Heading, Table, View

    guide = (files("safecache") / "guide").iterdir()
    pages = {page.name.removesuffix(".md"): page for page in guide if page.name.endswith(".md")}
    if arguments.topic is None:
        titles = {name: page.read_text(encoding="utf-8").partition("\n")[0] for name, page in sorted(pages.items())}
        rows = [(name, title.removeprefix("# ")) for name, title in titles.items()]
        return View(None, [Table([Heading("topic"), Heading("about", folds=True)], rows)])
    if arguments.topic not in pages:
        raise UsageError(f"there is no page {arguments.topic}, but {', '.join(sorted(pages))}")
    text, console = pages[arguments.topic].read_text(encoding="utf-8"), Console()
    if console.is_terminal:
        console.print(Markdown(text))
        return View(None, ())
    return View(None, text.splitlines())


_BOOTSTRAP = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "bootstrap")


def environment_for_children() -> dict[str, str]:
    """The environment that activates safecache: our sitecustomize first on PYTHONPATH."""
    config.name_run()
    environment = config.child_environment()
    before = environment.get("PYTHONPATH", "")
    # An empty entry means the current directory, but an empty variable means none.
    entries = [entry for entry in before.split(os.pathsep) if entry != _BOOTSTRAP] if before else []
    environment["PYTHONPATH"] = os.pathsep.join([_BOOTSTRAP, *entries])
    return environment


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    parser.add_argument("argv", nargs=argparse.REMAINDER, metavar="-- CMD...", help="the command and its arguments")


def run_run(arguments: argparse.Namespace) -> NoReturn:
    """Become the command. Raises UsageError if none is given, and NotRunError."""
    command = arguments.argv[1:] if arguments.argv[:1] == ["--"] else arguments.argv
    if not command:
        raise UsageError("no command given: safecache run -- CMD...")
    environment = environment_for_children()
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        raise NotRunError(command[0], error) from None
