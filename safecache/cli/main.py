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
from safecache.errors import ConfigError, SafecacheError, make_printable
from safecache.fs import stamps
from safecache.reporting import kinds
from safecache.settings import config
from safecache.settings.config import EXIT_CONFIG

if TYPE_CHECKING:
    from safecache.cli.view import View

__all__ = ["add_help", "add_run", "main", "make_child_environment", "run_help", "run_run"]

# The commands by purpose: for each its module, imported only when the command runs, and its help text. The module has
# functions add_COMMAND, which adds its arguments, and run_COMMAND.
_GROUPS = {
    "use": {
        "run": ("main", "run CMD with safecache active in it and in its children"),
        "warm": ("warm", "run CMD until a fresh process hits every cache; list what still misses"),
        "demo": ("demo", "compare stock torch and safecache on one small model, with faults injected"),
        "help": ("main", "read the guide in the terminal"),
    },
    "look": {
        "status": ("doctor", "import torch's cache modules and show which hooks are active"),
        "doctor": ("doctor", "find what keeps caches from working here, with remedies"),
        "ls": ("ls", "list kernels and graphs in caches: size, age, build, signer"),
        "show": ("ls", "show one cache item: build, files, signer, whether it would be accepted"),
        "stats": ("stats", "show cache hits and misses of a job run, with reasons"),
        "explain": ("stats", "show why lookups missed: which parts of which key differ"),
    },
    "keys": {
        "keys": ("keys", "list the sealing key and the trusted keys; make, trust or revoke one"),
        "adopt": ("keys", "seal existing unsealed entries of a private cache"),
        "sign": ("keys", "re-seal verified entries with your sealing key (key rotation)"),
        "verify": ("keys", "check seals: which entries would be accepted, and why others are refused"),
    },
    "upkeep": {
        "gc": ("gc", "delete least recently used items until the limits hold"),
        "quarantine": ("gc", "list, show, restore or delete quarantined files"),
        "copy": ("copy", "copy verified items between caches, packs, the remote and registries"),
        "diff": ("copy", "compare two packs or caches"),
        "forget": ("gc", "clear recorded compiler crashes (and with --all, crash-loop strikes)"),
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


def _make_overview() -> argparse.ArgumentParser:
    groups = []
    for group, commands in _GROUPS.items():
        groups += [f"{group}:", *(f"  {command:<12}{what}" for command, (_, what) in commands.items()), ""]
    codes = (
        "exit codes: 0 success, 1 findings or failure, 2 usage, 78 a setting with a bad value; `run`, and `warm` if CMD"
    )
    codes += " fails, exit with CMD's code"
    parser = argparse.ArgumentParser(
        prog="safecache",
        usage="safecache [-h] [--version] COMMAND ...",
        description="Makes the compile caches under torch.compile safe to rely on in production.",
        epilog="\n".join([*groups, codes]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"safecache {__version__}")
    parser.add_argument("command", metavar="COMMAND", choices=_COMMANDS, help="one of these; each has --help:")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv``, by default this process's, and return its exit code.

    Raises SystemExit for --help and for words that the command does not know.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0] in _ALIASES:
        words[:1] = _ALIASES[words[0]]
    is_unknown = bool(words) and words[0] not in {*_COMMANDS, *_OF_COPY} and words[0][:1] != "-"
    for near in difflib.get_close_matches(words[0], _COMMANDS, 1) if is_unknown else ():
        print(make_printable(f"safecache: there is no command {words[0]!r}: did you mean {near!r}?"), file=sys.stderr)
        return EXIT_USAGE
    is_of_copy = bool(words) and words[0] in _OF_COPY
    command: str = words[0] if is_of_copy else _make_overview().parse_args(words[:1]).command
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
        with stamps.suspend_stamping():
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
        print(make_printable(f"safecache {command}: {error}"), file=sys.stderr)
        return getattr(error, "exit_code", EXIT_FINDINGS)
    except KeyboardInterrupt:
        return 130


def add_help(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    parser.add_argument(
        "topic",
        nargs="?",
        metavar="PAGE[#SECTION]",
        help="a page, such as errors, or a section of one, such as errors#damaged",
    )


# Parts of the guide in the order of `safecache help`, and their pages.
_PAGES = {
    "tutorials": "first_steps vllm_docker kubernetes",
    "how-to": "servers warm ship oci remote directories keys limits",
    "troubleshooting": "errors misses doctor",
    "reference": "settings commands metrics costs changelog",
    "explanation": "security wrong_hits single_flight trials recompile_check crashes launchers moving snapshots",
    "project": "contributing architecture",
}


def _find_section(text: str, anchor: str) -> str | None:
    """Return the section of this page whose heading GitHub links to as ``anchor``; None if there is none."""
    from rich.markdown import Markdown

    lines = text.splitlines(keepends=True)
    heads = [(each.map[0], each.tag) for each in Markdown(text).parsed if each.type == "heading_open" and each.map]
    for number, (start, level) in enumerate(heads):
        if kinds.make_anchor(lines[start].strip("# \n")) == anchor:
            end = next((line for line, other in heads[number + 1 :] if other <= level), None)
            return "".join(lines[start:end])
    return None


def run_help(arguments: argparse.Namespace) -> View:
    """Show a page of safecache/guide, one section, or the list of pages. Without a terminal, that is its source."""
    from importlib.resources import files

    from rich.console import Console
    from rich.markdown import Markdown

    from safecache.cli.view import Heading, Table, View

    guide, console = files("safecache") / "guide", Console()
    texts = {
        name: (guide / f"{name}.md").read_text(encoding="utf-8") for names in _PAGES.values() for name in names.split()
    }
    if arguments.topic is None:
        width = max(map(len, texts))
        rows = {
            part: [(name.ljust(width), texts[name].partition("\n")[0].removeprefix("# ")) for name in names.split()]
            for part, names in _PAGES.items()
        }
        return View(None, [Table([Heading(part), Heading("", folds=True)], found) for part, found in rows.items()])
    page, _, anchor = arguments.topic.partition("#")
    if page not in texts:
        raise UsageError(f"there is no page {page}, but {', '.join(sorted(texts))}")
    text = _find_section(texts[page], anchor) if anchor else texts[page]
    if text is None:
        raise UsageError(f"page {page} has no section {anchor}: safecache help {page} prints all of it")
    if console.is_terminal:
        console.print(Markdown(text))
        return View(None, ())
    return View(None, text.splitlines())


_BOOTSTRAP = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "bootstrap")


def make_child_environment() -> dict[str, str]:
    """The environment that activates safecache: our sitecustomize first on PYTHONPATH."""
    config.name_run()
    environment = config.copy_environment()
    before = environment.get("PYTHONPATH", "")
    # An empty entry means the current directory, but an empty variable means none.
    entries = [entry for entry in before.split(os.pathsep) if entry != _BOOTSTRAP] if before else []
    environment["PYTHONPATH"] = os.pathsep.join([_BOOTSTRAP, *entries])
    return environment


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    parser.add_argument("argv", nargs=argparse.REMAINDER, metavar="-- CMD...", help="command to run")


def run_run(arguments: argparse.Namespace) -> NoReturn:
    """Become the command. Raises UsageError if none is given, and NotRunError."""
    command = arguments.argv[1:] if arguments.argv[:1] == ["--"] else arguments.argv
    if not command:
        raise UsageError("no command given: safecache run -- CMD...")
    environment = make_child_environment()
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        raise NotRunError(command[0], error) from None
