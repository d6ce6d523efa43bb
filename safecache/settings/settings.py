"""The settings: one table, which the guide and the reader of the environment share, and what their values mean."""

from __future__ import annotations

import os

from safecache.settings import units

__all__ = [
    "DEFAULT_NAMESPACE",
    "ISOLATE",
    "LEAST_COMPILE_MEMORY",
    "LONGEST_NAMESPACE",
    "LONGEST_TIME",
    "PACK",
    "REDIS",
    "REMOTES",
    "SETTINGS",
    "WORKERS",
    "Setting",
    "compile_memory",
    "compile_timeout",
    "isolate",
    "namespace",
    "one_of",
    "path",
    "paths",
    "seconds",
    "settings_table",
    "share",
    "switch",
    "url",
    "without_password",
]

# Not imported from typing, which would take half the time of `import safecache`.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


# A value of SAFECACHE_ISOLATE.
WORKERS = "workers"
# Bytes. With less, valid compiles of large kernels fail.
LEAST_COMPILE_MEMORY = 10**9
LONGEST_NAMESPACE = 128
# How the name of a pack ends.
PACK = ".safecache"
_NAMESPACE_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._/-")
# Seconds.
LONGEST_TIME = 86400.0
_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")


def switch(text: str) -> bool:
    """Parse a switch. This and the parsers below raise ValueError for a value that is not allowed."""
    word = text.strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ValueError(text)


def one_of(words: tuple[str, ...]) -> Callable[[str], str]:
    """A parser for one of these words, in either case."""

    def parse(text: str) -> str:
        word = text.strip().lower()
        if word not in words:
            raise ValueError(text)
        return word

    return parse


def path(text: str) -> str:
    """Parse an absolute path."""
    if not os.path.isabs(text):
        raise ValueError(text)
    return text


def names(text: str) -> tuple[str, ...]:
    """Names, without spaces around them."""
    return tuple(filter(None, map(str.strip, text.split(","))))


def paths(text: str) -> tuple[str, ...]:
    """Parse absolute paths separated by colons."""
    return tuple(path(each) for each in text.split(os.pathsep) if each)


def seconds(text: str) -> float:
    """Parse seconds, from 0 to LONGEST_TIME."""
    seconds = float(text)
    if not 0 <= seconds <= LONGEST_TIME:
        raise ValueError(text)
    return seconds


def share(text: str) -> float:
    """Parse a share, from 0 to 1."""
    share = float(text)
    if not 0 <= share <= 1:
        raise ValueError(text)
    return share


def compile_timeout(text: str) -> float:
    """Parse seconds, from 1 to LONGEST_TIME."""
    seconds = float(text)
    if not 1 <= seconds <= LONGEST_TIME:
        raise ValueError(text)
    return seconds


def compile_memory(text: str) -> int:
    """Parse bytes, with a unit or without, from LEAST_COMPILE_MEMORY."""
    size = units.parse_size(text)
    if size < LEAST_COMPILE_MEMORY:
        raise ValueError(text)
    return size


def isolate(text: str) -> bool | str:
    """Parse a switch, or WORKERS."""
    return WORKERS if text.strip().lower() == WORKERS else switch(text)


def url(text: str) -> str:
    """Parse the URL of a remote cache; a scheme of REMOTES has to be followed by ://, and that by something."""
    scheme, separator, rest = text.partition("://")
    if scheme.lower() not in REMOTES or not separator or not rest:
        raise ValueError(text)
    place = rest.partition("/")[0].rpartition("@")[2]
    port = place.rpartition("]")[2].partition(":")[2]
    # Not by urllib, which takes longer to import than all of activation.
    if ("[" in place) != ("]" in place) or (port and not (port.isascii() and port.isdigit() and int(port) < 1 << 16)):
        raise ValueError(text)
    return text


def without_password(text: str) -> str:
    """A URL as it may be shown: without user and password, and without parameters."""
    scheme, separator, rest = text.partition("://")
    place, slash, path = rest.partition("?")[0].partition("/")
    return f"{scheme}{separator}{place.rpartition('@')[2]}{slash}{path}"


def namespace(text: str) -> str:
    """Parse a namespace: its letters and length are limited."""
    if len(text) > LONGEST_NAMESPACE or not set(text) <= _NAMESPACE_LETTERS:
        raise ValueError(text)
    return text


TRUST_MODES = ("signed", "private")
FSYNC_MODES = ("auto", "always", "never")
DEFAULT_NAMESPACE = "default"
REDIS = ("redis", "rediss", "valkey", "valkeys")
REMOTES = (*REDIS, "s3", "gs", "az", "http", "https", "file")
# What config.isolate() sets.
ISOLATE = "SAFECACHE_ISOLATE"


class Setting:
    """One row of the table: ``parse`` raises ValueError for a value that ``allowed`` does not describe.

    ``alias``: the variable that it was before, which counts where the new one is unset.
    """

    def __init__(
        self,
        *,
        name: str,
        variable: str,
        default: Any,
        parse: Callable[[str], Any],
        allowed: str,
        help: str,
        alias: str = "",
    ) -> None:
        self.name = name
        self.variable = variable
        self.default = default
        self.parse = parse
        self.allowed = allowed
        self.help = help
        self.alias = alias


_SECONDS = f"seconds, 0 to {LONGEST_TIME:.0f}"
_SWITCH = "1/true/yes/on or 0/false/no/off"

SETTINGS: tuple[Setting, ...] = (
    Setting(
        name="enabled",
        variable="SAFECACHE",
        default=True,
        parse=switch,
        allowed=_SWITCH,
        help="`0` makes `import safecache` and `safecache run` do nothing at all.",
    ),
    Setting(
        name="strict",
        variable="SAFECACHE_STRICT",
        default=False,
        parse=switch,
        allowed=_SWITCH,
        help=(
            "`1` raises a clear error wherever the default is one warning and a recompile. A process without any key "
            "to verify with, or with a verifying hook that cannot be put on, does not start."
        ),
    ),
    Setting(
        name="disable",
        variable="SAFECACHE_DISABLE",
        default=(),
        parse=names,
        allowed="names of units, with , between them",
        help=(
            "Units of hooks that are left off, by the names that `safecache status` has for them, such as "
            "`vllm,remote_caches`: what they guard is as in stock torch. One that others need is left off with them."
        ),
    ),
    Setting(
        name="trust",
        variable="SAFECACHE_TRUST",
        default="signed",
        parse=one_of(TRUST_MODES),
        allowed=" or ".join(TRUST_MODES),
        help=(
            "`signed` takes only entries sealed by a key we hold. `private` also takes unsealed ones and those of "
            "other keys, if their name is the hash of their content and nobody but this user (and root) can write "
            "to them or to a directory on the path to them; and compiled code likewise. Not what a seal or record, "
            "whoever made it, says to be something else: other content, another kind, key, namespace or build."
        ),
    ),
    Setting(
        name="key_file",
        variable="SAFECACHE_KEY_FILE",
        default=None,
        parse=path,
        allowed="an absolute path",
        help=(
            "The file with the sealing key, such as a mounted secret: 32 raw bytes or more, a key file of "
            "`safecache keygen`, or a PEM file of an Ed25519 key. One with a public key verifies and seals nothing. "
            "Without it, a key per user is made on first use under `$XDG_CONFIG_HOME/safecache`."
        ),
    ),
    Setting(
        name="keyring",
        variable="SAFECACHE_KEYRING",
        default=None,
        parse=path,
        allowed="an absolute path",
        help=(
            "The directory of the keys whose entries are taken besides those of the sealing key, a file for each. "
            "Without it, `$XDG_CONFIG_HOME/safecache/keys`, if that exists."
        ),
    ),
    Setting(
        name="namespace",
        variable="SAFECACHE_NAMESPACE",
        default=DEFAULT_NAMESPACE,
        parse=namespace,
        allowed=f"letters, digits and . _ - / (up to {LONGEST_NAMESPACE})",
        help=(
            "Sealed into every entry; entries of another namespace are refused. A key can be limited to some, so that "
            "the key of a test farm supplies nothing to production."
        ),
    ),
    Setting(
        name="shared",
        variable="SAFECACHE_SHARED",
        default=False,
        parse=switch,
        allowed=_SWITCH,
        help=(
            "`1` says that several users share the cache directories on purpose: files of other owners are read too, "
            "and count if they are sealed. Without it they are not, and a directory that others can write to gets a "
            "warning."
        ),
    ),
    Setting(
        name="fsync",
        variable="SAFECACHE_FSYNC",
        default="auto",
        parse=one_of(FSYNC_MODES),
        allowed="auto, always or never",
        help=(
            "Whether to wait for the disk before a file gets its name, and after: at a loss of power, what was not "
            "waited for can be gone or torn, which is found out and compiled again (stock torch would read it). `auto` "
            "waits on network file systems, where otherwise another host could read it too early, and a full disk be "
            "noticed too late."
        ),
    ),
    Setting(
        name="lower",
        variable="SAFECACHE_LOWER",
        default=(),
        parse=paths,
        allowed="absolute paths, with : between them",
        help=(
            "Cache directories, and then packs (files named `*.safecache`, as `safecache pack` makes them), that are "
            "read where the cache itself has nothing, the first of them first, and never written: such as one that is "
            "part of a container's image. What lies there is verified like everything else."
        ),
    ),
    Setting(
        name="local",
        variable="SAFECACHE_LOCAL",
        default=None,
        parse=path,
        allowed="an absolute path",
        help=(
            "A directory on a fast disk of this node, before a cache directory that nodes share over a network: what "
            "is looked up is looked for here first, what only the shared one has is copied here, and what is compiled "
            "is written to both."
        ),
    ),
    Setting(
        name="remote",
        variable="SAFECACHE_REMOTE",
        default=None,
        parse=url,
        allowed=f"a URL: {', '.join(REMOTES)}",
        help=(
            "A cache that hosts share, below all local ones: what those lack is fetched from it, verified, and what is "
            "compiled is sent to it ([how](remote.md))."
        ),
    ),
    Setting(
        name="remote_password_file",
        variable="SAFECACHE_REMOTE_PASSWORD_FILE",
        default=None,
        parse=path,
        allowed="an absolute path",
        help="A file with the password of Redis or Valkey, where that is not to stand in the URL.",
    ),
    Setting(
        name="remote_read_only",
        variable="SAFECACHE_REMOTE_READ_ONLY",
        default=False,
        parse=switch,
        allowed=_SWITCH,
        help="`1` sends nothing, as for servers that a farm compiles for.",
    ),
    Setting(
        name="remote_connect",
        variable="SAFECACHE_REMOTE_CONNECT",
        default=0.2,
        parse=seconds,
        allowed=_SECONDS,
        help="How long to wait for a connection to the remote.",
    ),
    Setting(
        name="remote_timeout",
        variable="SAFECACHE_REMOTE_TIMEOUT",
        default=1,
        parse=seconds,
        allowed=_SECONDS,
        help=(
            "How long to wait for one answer, and in all for what is not there. After that the remote is left alone "
            "for 30 s."
        ),
    ),
    Setting(
        name="remote_flush",
        variable="SAFECACHE_REMOTE_FLUSH",
        default=5,
        parse=seconds,
        allowed=_SECONDS,
        help="How long a process that ends waits for what it has not sent yet.",
    ),
    Setting(
        name="remote_max_bytes",
        variable="SAFECACHE_REMOTE_MAX_BYTES",
        default=256_000_000,
        parse=units.parse_size,
        allowed=units.SIZES,
        help="The largest group of files that is sent or fetched, compressed or not.",
    ),
    Setting(
        name="remote_ttl",
        variable="SAFECACHE_REMOTE_TTL",
        default=None,
        parse=units.parse_age,
        allowed=units.AGES,
        help="How long Redis or Valkey keeps what is sent. An object store has rules of its own for that.",
    ),
    Setting(
        name="max_bytes",
        variable="SAFECACHE_MAX_BYTES",
        default=None,
        parse=units.parse_size,
        allowed=units.SIZES,
        help=(
            "How much the files of a cache directory may hold. What was not used for the longest time is removed, at "
            "most every ten minutes, after something was published; see `safecache gc`."
        ),
    ),
    Setting(
        name="max_files",
        variable="SAFECACHE_MAX_FILES",
        default=None,
        parse=units.parse_count,
        allowed="a number",
        help="How many files a cache directory may hold, likewise.",
    ),
    Setting(
        name="max_age",
        variable="SAFECACHE_MAX_AGE",
        default=None,
        parse=units.parse_age,
        allowed=units.AGES,
        help="How long what is not used stays in a cache directory, likewise.",
    ),
    Setting(
        name="must_hit",
        variable="SAFECACHE_MUST_HIT",
        default=False,
        parse=switch,
        allowed=_SWITCH,
        help=(
            "For images that were warmed: `1` makes each miss of a cache, and each lookup that a setting keeps from "
            "happening where a compile would follow, a `MissError` with its reason, before anything is compiled."
        ),
    ),
    Setting(
        name="lock_timeout",
        variable="SAFECACHE_LOCK_TIMEOUT",
        default=120,
        parse=seconds,
        allowed=_SECONDS,
        help=(
            "How long a compile waits for a lock of Inductor's that another process holds, before it goes on in a "
            "private directory, with a warning; after 5 s a line says which process holds it. Building most kernels "
            "takes about 10 s, large ones minutes; what it guards against is a holder that is frozen, or a file system "
            "that never grants a lock. (Torch alone gives up the compile after 600 s.)"
        ),
    ),
    Setting(
        name="single_flight",
        variable="SAFECACHE_SINGLE_FLIGHT",
        default=True,
        parse=switch,
        allowed=_SWITCH,
        help=(
            "Of processes that miss the same entry in the same cache, one compiles it and the others wait for that. "
            "`0` has each compile it for itself, as torch does."
        ),
    ),
    Setting(
        name="single_flight_wait",
        variable="SAFECACHE_SINGLE_FLIGHT_WAIT",
        default=300,
        parse=seconds,
        allowed=_SECONDS,
        help=(
            "How long a process waits for another to compile something, before it compiles that itself, with a line "
            "that says so; no longer than 10 times what that took before, and 30 s at least, if that is known. All "
            "waits after which nothing was found count together. One that died is noticed at once, and on the same "
            "host one that has not run for 10 s. A rank of a process group waits for at most half of the group's own "
            "limit between two collectives."
        ),
    ),
    Setting(
        name="trials",
        variable="SAFECACHE_TRIALS",
        default=True,
        parse=switch,
        allowed=_SWITCH,
        help=(
            "Of what a cache has supplied, a process notes what it is running for the first time; what it dies in, the "
            "next process sets aside and compiles anew ([how](trials.md)). `0` notes nothing, and sets nothing aside."
        ),
    ),
    Setting(
        name="exec_dir",
        variable="SAFECACHE_EXEC_DIR",
        default=None,
        parse=path,
        allowed="an absolute path",
        help=(
            "For sites where code may be loaded from one approved place alone: compiled kernels and extensions that "
            "nobody but this user could have written are loaded from copies there, in a directory of mode 0700."
        ),
    ),
    Setting(
        name="isolate",
        variable=ISOLATE,
        default=False,
        parse=isolate,
        allowed=f"{_SWITCH}, or {WORKERS}",
        help=(
            "`1` has Triton compile in processes of its own: a crash of the compiler, a hang or a want of memory "
            "becomes a `TritonCompileCrash`, which autotuners skip. Inductor's compile workers, themselves processes "
            "of their own, compile as ever, unless it is `workers`."
        ),
    ),
    Setting(
        name="prefetch",
        variable="SAFECACHE_PREFETCH",
        default=True,
        parse=switch,
        allowed=_SWITCH,
        help=(
            "`0` has `@triton.autotune` compile one configuration after the other, as in stock, also with "
            "`SAFECACHE_ISOLATE`. Without it, when the first one is not in the cache, the others are compiled at the "
            "same time, on as many CPUs as there are, up to 8; what is measured, and in what order, is the same."
        ),
    ),
    Setting(
        name="compile_timeout",
        variable="SAFECACHE_COMPILE_TIMEOUT",
        default=None,
        parse=compile_timeout,
        allowed=f"seconds, 1 to {LONGEST_TIME:.0f}",
        help="How long one such compile may take. Without it, 600 s, and 120 s where configurations are being tuned.",
    ),
    Setting(
        name="compile_memory",
        variable="SAFECACHE_COMPILE_MEMORY",
        default=None,
        parse=compile_memory,
        allowed=f"at least 1 GB: {units.SIZES}",
        help=(
            "How much memory one such process may take (RLIMIT_DATA). Without it, 16 GB, or half of what there is if "
            "that is less, but 1 GB at least."
        ),
    ),
    Setting(
        name="assume_unchanged",
        variable="SAFECACHE_ASSUME_UNCHANGED",
        default=(),
        parse=names,
        allowed="names separated by commas",
        help=(
            "Custom ops, such as `shop.double.default`, of which not all can be compared, and whose entries are used "
            "nonetheless ([which](wrong_hits.md))."
        ),
    ),
    Setting(
        name="recompile_sample",
        variable="SAFECACHE_RECOMPILE_SAMPLE",
        alias="SAFECACHE_VERIFY",
        default=0.0,
        parse=share,
        allowed="a number from 0 to 1",
        help=(
            "The share of hits that torch compiles nonetheless, to compare what it saves with the entry "
            "([how](recompile_check.md)): `0.01` is one in a hundred."
        ),
    ),
    Setting(
        name="explain",
        variable="SAFECACHE_EXPLAIN",
        default=False,
        parse=switch,
        allowed=_SWITCH,
        help=(
            "`1` logs a line at each miss that says which parts of its key differ from the nearest one that was saved; "
            "see `safecache explain`."
        ),
    ),
    Setting(
        name="metrics",
        variable="SAFECACHE_METRICS",
        default=False,
        parse=switch,
        allowed=_SWITCH,
        help=(
            "`1` counts for Prometheus, over all processes of a run ([how](servers.md#metrics)). It needs "
            "`pip install 'safecache[metrics]'`."
        ),
    ),
)


def settings_table() -> str:
    """The table of settings in Markdown, as the guide shows it."""
    rows = ["| variable | default | allowed | what it does |", "|---|---|---|---|"]
    for setting in SETTINGS:
        default = {True: "1", False: "0", None: "unset", (): "unset"}.get(setting.default, setting.default)
        rows.append(f"| `{setting.variable}` | `{default}` | {setting.allowed} | {setting.help} |")
    return "\n".join(rows)
