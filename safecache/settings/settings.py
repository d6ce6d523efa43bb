"""Settings: one table, which the guide and the reader of the environment share, and what their values mean."""

from __future__ import annotations

import os

from safecache.settings import units

__all__ = [
    "DEFAULT_NAMESPACE",
    "FSYNC_MODES",
    "ISOLATE",
    "LEAST_COMPILE_MEMORY",
    "OBSERVE",
    "PACK",
    "REDIS",
    "REMOTES",
    "SETTINGS",
    "TRUST_MODES",
    "VALUES",
    "WORKERS",
    "Setting",
    "Value",
    "hide_password",
    "is_pack",
    "parse_names",
    "parse_remote",
    "parse_switch",
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


def parse_switch(text: str) -> bool:
    """Parse a switch. This and the parsers below raise ValueError for a value that is not allowed."""
    word = text.strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ValueError(text)


def make_word_parser(words: tuple[str, ...]) -> Callable[[str], str]:
    """Return a parser for one of these words, in either case."""

    def parse(text: str) -> str:
        word = text.strip().lower()
        if word not in words:
            raise ValueError(text)
        return word

    return parse


def parse_path(text: str) -> str:
    """Parse an absolute path."""
    if not os.path.isabs(text):
        raise ValueError(text)
    return text


def parse_names(text: str) -> tuple[str, ...]:
    """Parse names separated by commas, without spaces around them."""
    return tuple(filter(None, map(str.strip, text.split(","))))


def parse_paths(text: str) -> tuple[str, ...]:
    """Parse absolute paths separated by colons."""
    return tuple(parse_path(each) for each in text.split(os.pathsep) if each)


def make_number_parser(least: float, most: float) -> Callable[[str], float]:
    """Return a parser for a number from ``least`` to ``most``."""

    def parse(text: str) -> float:
        number = float(text)
        if not least <= number <= most:
            raise ValueError(text)
        return number

    return parse


def parse_memory(text: str) -> int:
    """Parse bytes, with a unit or without, from LEAST_COMPILE_MEMORY."""
    size = units.parse_size(text)
    if size < LEAST_COMPILE_MEMORY:
        raise ValueError(text)
    return size


def make_switch_parser(word: str) -> Callable[[str], bool | str]:
    """Return a parser for a switch, or for this word."""
    return lambda text: word if text.strip().lower() == word else parse_switch(text)


def parse_url(text: str) -> str:
    """Return the URL of a remote cache unchanged: a scheme of REMOTES, "://", and a place with a valid port, if any.

    Raises ValueError for any other text.
    """
    scheme, separator, rest = text.partition("://")
    if scheme.lower() not in REMOTES or not separator or not rest:
        raise ValueError(text)
    place = rest.partition("/")[0].rpartition("@")[2]
    port = place.rpartition("]")[2].partition(":")[2]
    # Not by urllib, which takes longer to import than all of activation.
    if ("[" in place) != ("]" in place) or (port and not (port.isascii() and port.isdigit() and int(port) < 1 << 16)):
        raise ValueError(text)
    return text


def hide_password(text: str) -> str:
    """Return a URL as it may be shown: without user, password and parameters."""
    scheme, separator, rest = text.partition("://")
    place, slash, path = rest.partition("?")[0].partition("/")
    return f"{scheme}{separator}{place.rpartition('@')[2]}{slash}{path}"


def parse_namespace(text: str) -> str:
    """Parse a namespace, whose letters and length are limited."""
    if len(text) > LONGEST_NAMESPACE or not set(text) <= _NAMESPACE_LETTERS:
        raise ValueError(text)
    return text


SHARED = "shared"
TRUST_MODES = ("signed", "private", SHARED)
FSYNC_MODES = ("auto", "always", "never")
DEFAULT_NAMESPACE = "default"
REDIS = ("redis", "rediss", "valkey", "valkeys")
REMOTES = (*REDIS, "s3", "gs", "az", "http", "https", "file")
# What config.isolate() sets.
ISOLATE = "SAFECACHE_ISOLATE"
CACHE = "cache"  # in SAFECACHE_TIERS


class Value:
    """Description of one value of Config: ``parse`` raises ValueError for what ``allowed`` does not describe.

    ``older``: the variable that has set it alone, which counts for one more release.
    """

    def __init__(self, name: str, default: Any, parse: Callable[[str], Any], allowed: str, older: str = "") -> None:
        self.name = name
        self.default = default
        self.parse = parse
        self.allowed = allowed
        self.older = older and f"SAFECACHE_{older}"


class Setting:
    """Description of one variable, as in guide/settings.md: ``parse`` returns what it sets of VALUES, by name."""

    def __init__(self, name: str, parse: Callable[[str], dict[str, Any]], allowed: str) -> None:
        self.variable = f"SAFECACHE_{name}" if name else "SAFECACHE"
        self.parse = parse
        self.allowed = allowed


_SWITCH = (parse_switch, "1/true/yes/on or 0/false/no/off")
_PATH = (parse_path, "an absolute path")
_SECONDS = (make_number_parser(0, LONGEST_TIME), f"seconds, 0 to {LONGEST_TIME:.0f}")
_SIZE = (units.parse_size, "a size such as 10G or 10GiB")
_AGE = (units.parse_age, units.AGES)

VALUES = {
    value.name: value
    for value in (
        Value("enabled", True, make_switch_parser(OBSERVE), f"{_SWITCH[1]}, or {OBSERVE}"),
        Value("strict", False, *_SWITCH),
        Value("disable", (), parse_names, "names of units, comma-separated"),
        Value("trust", "signed", make_word_parser(TRUST_MODES), f"signed, private or {SHARED}"),
        Value("key_file", None, *_PATH),
        Value("keyring", None, *_PATH),
        Value(
            "namespace", DEFAULT_NAMESPACE, parse_namespace, f"letters, digits and . _ - / (up to {LONGEST_NAMESPACE})"
        ),
        Value("shared", False, *_SWITCH, "SHARED"),
        Value("fsync", "auto", make_word_parser(FSYNC_MODES), "auto, always or never"),
        Value("local", None, *_PATH, "LOCAL"),
        Value("lower", (), parse_paths, "absolute paths, colon-separated", "LOWER"),
        Value("remote", None, parse_url, f"a URL: {', '.join(REMOTES)}", "REMOTE"),
        Value("remote_password_file", None, *_PATH, "REMOTE_PASSWORD_FILE"),
        Value("remote_read_only", False, *_SWITCH, "REMOTE_READ_ONLY"),
        Value("remote_connect", 0.2, *_SECONDS, "REMOTE_CONNECT"),
        Value("remote_timeout", 1, *_SECONDS, "REMOTE_TIMEOUT"),
        Value("remote_flush", 5, *_SECONDS, "REMOTE_FLUSH"),
        Value("remote_max_bytes", 256_000_000, *_SIZE, "REMOTE_MAX_BYTES"),
        Value("remote_ttl", None, *_AGE, "REMOTE_TTL"),
        Value("max_bytes", None, *_SIZE, "MAX_BYTES"),
        Value("max_files", None, units.parse_count, "a number", "MAX_FILES"),
        Value("max_age", None, *_AGE, "MAX_AGE"),
        Value("must_hit", False, *_SWITCH, "MUST_HIT"),
        Value("lock_timeout", 120, *_SECONDS, "LOCK_TIMEOUT"),
        Value("single_flight", True, *_SWITCH, "SINGLE_FLIGHT"),
        Value("single_flight_wait", 300, *_SECONDS, "SINGLE_FLIGHT_WAIT"),
        Value("trials", True, *_SWITCH, "TRIALS"),
        Value("exec_dir", None, *_PATH),
        Value("isolate", False, make_switch_parser(WORKERS), f"{_SWITCH[1]}, or {WORKERS}"),
        Value("prefetch", True, *_SWITCH, "PREFETCH"),
        Value(
            "compile_timeout",
            None,
            make_number_parser(1, LONGEST_TIME),
            f"seconds, 1 to {LONGEST_TIME:.0f}",
            "COMPILE_TIMEOUT",
        ),
        Value("compile_memory", None, parse_memory, f"{_SIZE[1]}, at least 1G", "COMPILE_MEMORY"),
        Value("assume_unchanged", (), parse_names, "names, comma-separated"),
        Value("recompile_sample", 0.0, make_number_parser(0, 1), "a number from 0 to 1", "VERIFY"),
        Value("explain", False, *_SWITCH),
        Value("metrics", False, *_SWITCH),
    )
}


def _make_setting(name: str, variable: str | None = None) -> Setting:
    value = VALUES[name]
    return Setting(
        name.upper() if variable is None else variable, lambda text: {name: value.parse(text)}, value.allowed
    )


def _make_combined(variable: str, parts: dict[str, str], main: str = "") -> Setting:
    """Return a setting of comma-separated ``name=value``, and at most one lone word, the value of ``main``."""

    def parse(text: str) -> dict[str, Any]:
        found = {}
        for word in parse_names(text):
            part, is_part, value = word.partition("=")
            name = parts.get(part, "") if is_part else main
            if not name or name in found:
                raise ValueError(text)
            found[name] = VALUES[name].parse(value if is_part else part)
        if not found:
            raise ValueError(text)
        return found

    words = [VALUES[main].allowed] if main else []
    words += [f"{part}={VALUES[name].allowed}" for part, name in parts.items()]
    return Setting(variable, parse, "comma-separated: " + "; ".join(words))


def _parse_trust(text: str) -> dict[str, Any]:
    mode = VALUES["trust"].parse(text)
    return {"trust": "signed", "shared": True} if mode == SHARED else {"trust": mode}


def _parse_waits(text: str) -> dict[str, Any]:
    found = _WAITS.parse(text)
    if found.get("single_flight_wait") == 0:
        found["single_flight"] = False
    return found


# Parameters of a remote's URL, after the name of each value.
_OF_REMOTE = ("password_file", "read_only", "connect", "timeout", "flush", "max_bytes", "ttl")
_TIERS = (
    f"comma-separated, in this order, each optional: DIRECTORY,{CACHE}; directories; packs; a URL of "
    f"{'/'.join(REMOTES)}; absolute paths"
)


def _parse_tiers(text: str) -> dict[str, Any]:
    *above, below = [parse_names(part) for part in f",{text},".split(f",{CACHE},")]
    fast = above[0] if above else ()
    lower = tuple(word for word in below if "://" not in word)
    remotes = below[len(lower) :]
    is_ordered = lower + remotes == below and [*lower] == sorted(lower, key=is_pack) and not any(map(is_pack, fast))
    if not is_ordered or not (fast or below) or max(len(above), len(fast), len(remotes)) > 1:
        raise ValueError(text)
    found = {"local": next(map(parse_path, fast), None), "lower": tuple(map(parse_path, lower)), "remote": None}
    for remote in remotes:
        found |= parse_remote(remote)
    return found


def parse_remote(text: str) -> dict[str, Any]:
    """Parse the URL of a remote with its parameters. Return what they set of VALUES, by name. Raises ValueError."""
    place, _, query = text.partition("?")
    theirs, found = [], {}
    for pair in filter(None, query.split("&")):
        name, _, value = pair.partition("=")
        if name in _OF_REMOTE:
            found[f"remote_{name}"] = VALUES[f"remote_{name}"].parse(value)
        else:
            theirs.append(pair)
    return {"remote": parse_url("?".join(filter(None, [place, "&".join(theirs)]))), **found}


def is_pack(path: str) -> bool:
    """Tell whether a file of this name is a pack, by its ending. A directory named ``.safecache`` is none."""
    return os.path.splitext(path)[1] == PACK


_WAITS = _make_combined("WAIT", {"lock": "lock_timeout", "compile": "single_flight_wait"})
SETTINGS = (
    _make_setting("enabled", ""),
    _make_combined("STRICT", {"misses": "must_hit"}, "strict"),
    _make_setting("disable"),
    Setting("TRUST", _parse_trust, VALUES["trust"].allowed),
    _make_setting("key_file"),
    _make_setting("keyring"),
    _make_setting("namespace"),
    _make_setting("fsync"),
    Setting("TIERS", _parse_tiers, _TIERS),
    _make_combined("LIMITS", {"bytes": "max_bytes", "files": "max_files", "age": "max_age"}),
    Setting("WAIT", _parse_waits, _WAITS.allowed),
    _make_setting("exec_dir"),
    _make_combined(
        "ISOLATE", {"timeout": "compile_timeout", "memory": "compile_memory", "ahead": "prefetch"}, "isolate"
    ),
    _make_setting("assume_unchanged"),
    _make_setting("recompile_sample"),
    _make_setting("explain"),
    _make_setting("metrics"),
)
