"""The command line: ``safecache`` and ``python -m safecache``."""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import sys
from collections.abc import Sequence

from safecache._version import __version__
from safecache.cli import EXIT_FINDINGS, EXIT_USAGE
from safecache.errors import ConfigError, SafecacheError, printable
from safecache.files import stamps
from safecache.settings import config
from safecache.settings.config import EXIT_CONFIG

__all__ = ["main"]

# The commands by purpose: for each its module, imported only when the command runs, and its help text.
_GROUPS = {
    "use": {
        "run": ("run", "run a command with safecache active in it and in its children"),
        "warm": ("warm", "run a command until its caches are filled, and say what would still miss"),
        "demo": ("demo", "a real model, cold and warm, and what faults do to stock torch and to us"),
        "help": ("topics", "the reference: list its pages, or show one, such as settings"),
    },
    "look": {
        "status": ("status", "import torch's cache modules and say what the hooks do there"),
        "doctor": ("doctor", "look for what keeps caches from working here, and say what to do"),
        "ls": ("ls", "list what lies in caches: kernels and graphs, their size, age, build, signer"),
        "show": ("show", "tell all about one of them: its build, files, signer, and if it is used"),
        "stats": ("stats", "say what the processes of a run have looked up, and why it was missed"),
        "explain": ("explain", "say why lookups missed: which parts of which key differ"),
    },
    "keys": {
        "keys": ("keys", "list the keys that this process seals with and trusts; make, trust or revoke one"),
        "adopt": ("entries", "seal the entries of a private cache directory, once, on your word"),
        "sign": ("entries", "seal with our key the entries that verify now, under any trusted key"),
        "verify": ("entries", "say which entries would be used, and why not the others"),
    },
    "upkeep": {
        "gc": ("gc", "bring caches within their limits: the least recently used goes first"),
        "quarantine": ("quarantine", "list, show, restore or remove what is in quarantine"),
        "copy": ("copy", "have in a cache, a pack, the remote or a registry what others have and it lacks"),
        "diff": ("copy", "tell what differs between two packs or caches"),
        "forget": ("quarantine", "have kernels compiled again that have crashed Triton's compiler"),
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
    name, what = _COMMANDS["copy" if is_of_copy else command]
    module = importlib.import_module(f"safecache.cli.{name}")
    parser = argparse.ArgumentParser(prog=f"safecache {command}", description=f"{what[0].upper()}{what[1:]}.")
    parser.set_defaults(command=command)
    module.add(parser)
    try:
        arguments = parser.parse_args(module.translate(command, words[1:]) if is_of_copy else words[1:])
        if command != "doctor":  # doctor reports bad settings as findings
            config.current()
        if command not in ("doctor", "status"):  # which say what the settings are
            config.enforce()
        with stamps.suspended():
            code: int = module.run(arguments).show(as_json=getattr(arguments, "json", False))
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
