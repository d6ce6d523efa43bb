"""Arguments that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from safecache.errors import ConfigError
from safecache.places import layout
from safecache.remote import client
from safecache.remote.client import Client
from safecache.settings import config, extras, settings, units
from safecache.tiers import levels

__all__ = [
    "DIRECTORY_HELP",
    "add_directories",
    "add_json",
    "add_places",
    "add_remote",
    "find_caches",
    "number",
    "of",
    "remote_of",
    "require_zstandard",
]

DIRECTORY_HELP = "a cache directory; by default those that torch and Triton use under this environment"


def add_json(parser: argparse._ActionsContainer) -> argparse.Action:
    """Add ``--json``."""
    return parser.add_argument("--json", action="store_true", help="print JSON")


def add_directories(parser: argparse.ArgumentParser) -> None:
    """Add the directories that a command works on, as positional arguments."""
    parser.add_argument("directories", nargs="*", metavar="DIR", help=DIRECTORY_HELP)


def add_places(parser: argparse.ArgumentParser, *, again: bool = False) -> None:
    """Add ``--in`` and ``--json``. ``again``: for an action's parser, which keeps values given before the action."""
    directories = parser.add_argument("--in", dest="directories", action="append", metavar="DIR", help=DIRECTORY_HELP)
    as_json = add_json(parser)
    if again:
        directories.default = as_json.default = argparse.SUPPRESS


def add_remote(parser: argparse.ArgumentParser, *, instead: str) -> None:
    """Add ``--remote``; ``instead``: what the command does with it in place of what it does without."""
    text = f"{instead}: a remote cache, in place of that of SAFECACHE_TIERS"
    parser.add_argument("--remote", nargs="?", const="", type=_url, metavar="URL", help=text)


def _url(text: str) -> str:
    try:
        return settings.url(text) if text else ""
    except ValueError:
        # What it is may have a password in it.
        raise argparse.ArgumentTypeError(f"not a URL of {', '.join(settings.REMOTES)}") from None


def remote_of(arguments: argparse.Namespace) -> Client:
    """The remote that is named, or else that of the settings. Raises ConfigError where there is none."""
    found = client.background_client(arguments.remote or None)
    if found is None:
        raise ConfigError("there is no remote cache: name one in SAFECACHE_TIERS, or give --remote URL")
    return found


def find_caches(arguments: argparse.Namespace) -> list[str]:
    """The directories that were named, or else those that torch and Triton would use; and vLLM's below them."""
    environ, named = config.child_environment(), arguments.directories
    of_vllm = (cache for place in named or [layout.vllm_cache_dir(environ)] for cache in layout.vllm_caches(place))
    return [*(named or levels.existing_caches(environ)), *of_vllm]


def require_zstandard() -> None:
    """Raise ConfigError, with the line that installs it, where packs cannot be read."""
    if not extras.is_installed("zstandard"):
        raise ConfigError(f"packs need zstandard: {extras.line('pack')}")


def of(parse: Callable[[str], int], allowed: str) -> Callable[[str], int]:
    """An argparse type that calls ``parse``; ``allowed``: the valid values, for the error message."""

    def checked(text: str) -> int:
        try:
            return parse(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not {allowed}") from None

    return checked


number = of(units.parse_count, "a number from 1")
