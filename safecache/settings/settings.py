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
    "OBSERVE",
    "PACK",
    "REDIS",
    "REMOTES",
    "SETTINGS",
    "WORKERS",
    "Form",
    "Setting",
    "compile_memory",
    "compile_timeout",
    "enabled",
    "isolate",
    "namespace",
    "one_of",
    "path",
    "paths",
    "seconds",
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
# A value of SAFECACHE.
OBSERVE = "observe"
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


def enabled(text: str) -> bool | str:
    """Parse a switch, or OBSERVE."""
    return OBSERVE if text.strip().lower() == OBSERVE else switch(text)


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


class Form:
    """How a value is written: ``parse`` raises ValueError for what ``allowed`` does not describe."""

    def __init__(self, parse: Callable[[str], Any], allowed: str) -> None:
        self.parse = parse
        self.allowed = allowed


class Setting:
    """Describe one row of the table, of which guide/settings.md tells the rest.

    ``alias``: the variable that it was before, which counts where the new one is unset.
    """

    def __init__(self, name: str, default: Any, form: Form, variable: str = "", alias: str = "") -> None:
        self.name = name
        self.variable = variable or f"SAFECACHE_{name.upper()}"
        self.default = default
        self.parse = form.parse
        self.allowed = form.allowed
        self.alias = alias


_SWITCH = Form(switch, "1/true/yes/on or 0/false/no/off")
_PATH = Form(path, "an absolute path")
_SECONDS = Form(seconds, f"seconds, 0 to {LONGEST_TIME:.0f}")
_SIZE = Form(units.parse_size, units.SIZES)
_AGE = Form(units.parse_age, units.AGES)

SETTINGS: tuple[Setting, ...] = (
    Setting("enabled", True, Form(enabled, f"{_SWITCH.allowed}, or {OBSERVE}"), variable="SAFECACHE"),
    Setting("strict", False, _SWITCH),
    Setting("disable", (), Form(names, "names of units, with , between them")),
    Setting("trust", "signed", Form(one_of(TRUST_MODES), " or ".join(TRUST_MODES))),
    Setting("key_file", None, _PATH),
    Setting("keyring", None, _PATH),
    Setting(
        "namespace", DEFAULT_NAMESPACE, Form(namespace, f"letters, digits and . _ - / (up to {LONGEST_NAMESPACE})")
    ),
    Setting("shared", False, _SWITCH),
    Setting("fsync", "auto", Form(one_of(FSYNC_MODES), "auto, always or never")),
    Setting("lower", (), Form(paths, "absolute paths, with : between them")),
    Setting("local", None, _PATH),
    Setting("remote", None, Form(url, f"a URL: {', '.join(REMOTES)}")),
    Setting("remote_password_file", None, _PATH),
    Setting("remote_read_only", False, _SWITCH),
    Setting("remote_connect", 0.2, _SECONDS),
    Setting("remote_timeout", 1, _SECONDS),
    Setting("remote_flush", 5, _SECONDS),
    Setting("remote_max_bytes", 256_000_000, _SIZE),
    Setting("remote_ttl", None, _AGE),
    Setting("max_bytes", None, _SIZE),
    Setting("max_files", None, Form(units.parse_count, "a number")),
    Setting("max_age", None, _AGE),
    Setting("must_hit", False, _SWITCH),
    Setting("lock_timeout", 120, _SECONDS),
    Setting("single_flight", True, _SWITCH),
    Setting("single_flight_wait", 300, _SECONDS),
    Setting("trials", True, _SWITCH),
    Setting("exec_dir", None, _PATH),
    Setting("isolate", False, Form(isolate, f"{_SWITCH.allowed}, or {WORKERS}")),
    Setting("prefetch", True, _SWITCH),
    Setting("compile_timeout", None, Form(compile_timeout, f"seconds, 1 to {LONGEST_TIME:.0f}")),
    Setting("compile_memory", None, Form(compile_memory, f"at least 1 GB: {units.SIZES}")),
    Setting("assume_unchanged", (), Form(names, "names separated by commas")),
    Setting("recompile_sample", 0.0, Form(share, "a number from 0 to 1"), alias="SAFECACHE_VERIFY"),
    Setting("explain", False, _SWITCH),
    Setting("metrics", False, _SWITCH),
)
