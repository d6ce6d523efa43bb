"""The command line: ``safecache`` and ``python -m safecache``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from safecache._version import __version__
from safecache.cli import (
    EXIT_FINDINGS,
    EXIT_USAGE,
    crash_arguments,
    doctor_arguments,
    explain_arguments,
    key_arguments,
    limit_arguments,
    listing_arguments,
    patch_arguments,
    report_arguments,
    stats_arguments,
)
from safecache.errors import ConfigError, SafecacheError, printable
from safecache.files import stamps
from safecache.settings import config
from safecache.settings.config import EXIT_CONFIG

__all__ = ["EXIT_CONFIG", "EXIT_FINDINGS", "EXIT_USAGE", "main"]

# Each adds the parsers of its commands, and runs them.
_GROUPS = (
    limit_arguments,
    listing_arguments,
    crash_arguments,
    stats_arguments,
    explain_arguments,
    doctor_arguments,
    report_arguments,
    patch_arguments,
)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="safecache",
        description="Makes the compile caches under torch.compile safe to rely on in production.",
        epilog="exit codes: 0 fine, 1 findings or failure, 2 usage, 78 a setting with a bad value; of `run`: CMD's own",
    )
    parser.add_argument("--version", action="version", version=f"safecache {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    guide = commands.add_parser("help", help="the reference: lists its pages, or shows one, such as settings")
    guide.add_argument("topic", nargs="?", metavar="TOPIC", help="the page")

    status = commands.add_parser("status", help="import torch's cache modules and say what every hook does there")
    status.add_argument("--json", action="store_true", help="print JSON")
    status.add_argument(
        "--sinks", action="store_true", help="every place in torch and Triton that runs bytes, and what verifies them"
    )
    status.add_argument("--no-import", action="store_true", help="do not import torch: only show the table")

    run = commands.add_parser("run", help="run a command with safecache active in it and in its children")
    run.add_argument("argv", nargs=argparse.REMAINDER, metavar="-- CMD...", help="the command and its arguments")

    adopt = commands.add_parser("adopt", help="seal the entries of a private cache directory, once, on your word")
    adopt.add_argument(
        "directory", metavar="DIR", help="the cache directory, such as $TORCHINDUCTOR_CACHE_DIR, or a package (.pt2)"
    )
    adopt.add_argument("--json", action="store_true", help="print JSON")

    key_arguments.add(commands)
    for group in _GROUPS:
        group.add(commands)

    demo = commands.add_parser("demo", help="a real model, cold and warm, and what faults do to stock torch and to us")
    demo.add_argument("--json", action="store_true", help="print JSON")

    bench = commands.add_parser("bench", help="measure against stock torch in the same run, interleaved")
    bench.add_argument(
        "what", nargs="?", choices=["isolate"], help="isolate: compiling kernels in processes of their own, instead"
    )
    bench.add_argument("--pairs", type=_positive, default=7, metavar="N", help="pairs of runs a figure (default 7)")
    bench.add_argument("--json", action="store_true", help="print JSON")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    arguments = _parser().parse_args(argv)
    try:
        if arguments.command not in doctor_arguments.COMMANDS:  # which finds out what is wrong with them
            config.current()
        with stamps.suspended():
            return _dispatch(arguments)
    except ConfigError as error:
        print(f"safecache: {error}", file=sys.stderr)
        return EXIT_CONFIG
    except (SafecacheError, OSError) as error:
        print(printable(f"safecache {arguments.command}: {error}"), file=sys.stderr)
        return EXIT_FINDINGS
    except KeyboardInterrupt:
        return 130


def _dispatch(arguments: argparse.Namespace) -> int:
    # Imported one by one: `run` must not pay for what `bench` needs.
    if arguments.command == "run":
        return _run(arguments.argv)
    if arguments.command == "help":
        from safecache.cli import topics

        return topics.run(arguments.topic)
    if arguments.command == "status":
        from safecache.cli import status

        show = status.show_sinks if arguments.sinks else status.show
        return show(as_json=arguments.json, importing=not arguments.no_import)
    if arguments.command == "adopt":
        return _adopt(arguments.directory, as_json=arguments.json)
    if arguments.command in key_arguments.KEY_COMMANDS:
        from safecache.cli import keys

        return keys.run(arguments)
    if arguments.command in key_arguments.ENTRY_COMMANDS:
        from safecache.cli import entries

        return entries.run(arguments)
    for group in _GROUPS:
        if arguments.command in group.COMMANDS:
            code: int = group.run(arguments)
            return code
    if arguments.command == "demo":
        from safecache.cli import demo

        return demo.show(as_json=arguments.json)
    return _bench(arguments)


def _bench(arguments: argparse.Namespace) -> int:
    if arguments.what == "isolate":
        from safecache.cli import bench_isolate

        return bench_isolate.show(rounds=arguments.pairs, as_json=arguments.json)
    from safecache.cli import bench

    return bench.show(pairs=arguments.pairs, as_json=arguments.json)


def _run(argv: list[str]) -> int:
    from safecache.cli.run import run

    command = argv[1:] if argv[:1] == ["--"] else argv
    if not command:
        print("safecache run: no command given: safecache run -- CMD...", file=sys.stderr)
        return EXIT_USAGE
    run(command)


def _adopt(directory: str, *, as_json: bool) -> int:
    from safecache.cli import entries
    from safecache.upkeep import limits
    from safecache.upkeep.sealing import adopt

    limits.keep()
    return entries.show_resealing(adopt(directory), as_json=as_json)
