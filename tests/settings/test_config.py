"""Every setting: its default, each spelling, and a bad value that names the variable, itself and what is allowed."""

from __future__ import annotations

import ast
import os
import pwd
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from safecache.errors import ConfigError
from safecache.settings import config, settings

ROOT = Path(__file__).parents[2]
SWITCHES = (
    "SAFECACHE",
    "SAFECACHE_STRICT",
    "SAFECACHE_SHARED",
    "SAFECACHE_ISOLATE",
    "SAFECACHE_PREFETCH",
    "SAFECACHE_REMOTE_READ_ONLY",
    "SAFECACHE_MUST_HIT",
    "SAFECACHE_EXPLAIN",
    "SAFECACHE_METRICS",
    "SAFECACHE_TRIALS",
)
HOME = {"HOME": "/home/user"}


# Those of before, by which each value is set alone, and those of now that are about one value.
NAMES = {f"SAFECACHE_{name.upper()}" if name != "enabled" else "SAFECACHE": name for name in settings.VALUES}


def value(variable, text=None):
    read = config.load(HOME if text is None else {**HOME, variable: text})
    return getattr(read, NAMES[variable])


DEFAULTS = {
    "SAFECACHE": True,
    "SAFECACHE_STRICT": False,
    "SAFECACHE_TRUST": "signed",
    "SAFECACHE_KEY_FILE": None,
    "SAFECACHE_KEYRING": None,
    "SAFECACHE_NAMESPACE": "default",
    "SAFECACHE_SHARED": False,
    "SAFECACHE_FSYNC": "auto",
    "SAFECACHE_LOWER": (),
    "SAFECACHE_LOCAL": None,
    "SAFECACHE_REMOTE": None,
    "SAFECACHE_REMOTE_PASSWORD_FILE": None,
    "SAFECACHE_REMOTE_READ_ONLY": False,
    "SAFECACHE_REMOTE_CONNECT": 0.2,
    "SAFECACHE_REMOTE_TIMEOUT": 1,
    "SAFECACHE_REMOTE_FLUSH": 5,
    "SAFECACHE_REMOTE_MAX_BYTES": 256_000_000,
    "SAFECACHE_REMOTE_TTL": None,
    "SAFECACHE_MAX_BYTES": None,
    "SAFECACHE_MAX_FILES": None,
    "SAFECACHE_MAX_AGE": None,
    "SAFECACHE_MUST_HIT": False,
    "SAFECACHE_LOCK_TIMEOUT": 120,
    "SAFECACHE_SINGLE_FLIGHT": True,
    "SAFECACHE_SINGLE_FLIGHT_WAIT": 300,
    "SAFECACHE_TRIALS": True,
    "SAFECACHE_EXEC_DIR": None,
    "SAFECACHE_ISOLATE": False,
    "SAFECACHE_PREFETCH": True,
    "SAFECACHE_COMPILE_TIMEOUT": None,
    "SAFECACHE_COMPILE_MEMORY": None,
    "SAFECACHE_EXPLAIN": False,
    "SAFECACHE_ASSUME_UNCHANGED": (),
    "SAFECACHE_DISABLE": (),
    "SAFECACHE_RECOMPILE_SAMPLE": 0.0,
    "SAFECACHE_METRICS": False,
}
PATHS = (
    "SAFECACHE_KEY_FILE",
    "SAFECACHE_KEYRING",
    "SAFECACHE_LOCAL",
    "SAFECACHE_REMOTE_PASSWORD_FILE",
    "SAFECACHE_EXEC_DIR",
)


def test_these_are_all_settings():
    assert NAMES.keys() == DEFAULTS.keys() <= {*config.VARIABLES}
    assert {*NAMES.values(), "config_home"} == vars(config.load({})).keys()
    assert {*config.VARIABLES} - DEFAULTS.keys() == {
        "SAFECACHE_TIERS",
        "SAFECACHE_LIMITS",
        "SAFECACHE_WAIT",
        "SAFECACHE_VERIFY",
    }


TIERS = {
    "/a,/b/c": {"lower": ("/a", "/b/c")},
    " /a , /b.safecache ,": {"lower": ("/a", "/b.safecache")},
    "/nvme,cache": {"local": "/nvme"},
    "/nvme,cache,/a": {"local": "/nvme", "lower": ("/a",)},
    "cache,/a": {"lower": ("/a",)},
    "redis://h/0": {"remote": "redis://h/0"},
    "/a,s3://b/c?region=x&timeout=2&read_only=1": {
        "lower": ("/a",),
        "remote": "s3://b/c?region=x",
        "remote_timeout": 2.0,
        "remote_read_only": True,
    },
    "redis://h?connect=1&flush=2&max_bytes=1M&ttl=1d&password_file=/p": {
        "remote": "redis://h",
        "remote_connect": 1.0,
        "remote_flush": 2.0,
        "remote_max_bytes": 10**6,
        "remote_ttl": 86400,
        "remote_password_file": "/p",
    },
}


def changed(environ):
    read, before = vars(config.load(HOME | environ)), vars(config.load(HOME))
    return {name: read[name] for name in read if read[name] != before[name]}


@pytest.mark.parametrize("text", TIERS)
def test_tiers_are_in_their_order(text):
    assert changed({"SAFECACHE_TIERS": text}) == TIERS[text]


@pytest.mark.parametrize(
    ("variable", "text", "expected"),
    [
        ("LIMITS", "bytes=10G, age=30d", {"max_bytes": 10**10, "max_age": 30 * 86400}),
        ("LIMITS", "files=5", {"max_files": 5}),
        ("STRICT", "1,misses=1", {"strict": True, "must_hit": True}),
        ("STRICT", "misses=1", {"must_hit": True}),
        ("TRUST", " Shared ", {"shared": True}),
        ("TRUST", "private", {"trust": "private"}),
        ("WAIT", "lock=5,compile=6", {"lock_timeout": 5.0, "single_flight_wait": 6.0}),
        ("WAIT", "compile=0", {"single_flight": False, "single_flight_wait": 0.0}),
        ("ISOLATE", "1,timeout=60", {"isolate": True, "compile_timeout": 60.0}),
        (
            "ISOLATE",
            "memory=4G,workers,ahead=0",
            {"isolate": "workers", "compile_memory": 4 * 10**9, "prefetch": False},
        ),
        ("ISOLATE", "timeout=60", {"compile_timeout": 60.0}),
    ],
)
def test_values_that_belong_together_are_set_together(variable, text, expected):
    assert changed({f"SAFECACHE_{variable}": text}) == expected


def test_variable_of_now_counts_before_those_of_before():
    older = {"SAFECACHE_LOWER": "/a", "SAFECACHE_LOCAL": "/b", "SAFECACHE_MAX_BYTES": "1k", "SAFECACHE_MAX_AGE": "1d"}
    newer = {"SAFECACHE_TIERS": "/c", "SAFECACHE_LIMITS": "bytes=2k"}
    assert changed(older | newer) == {"lower": ("/c",), "max_bytes": 2000, "max_age": 86400}
    assert changed({"SAFECACHE_MUST_HIT": "1", "SAFECACHE_STRICT": "misses=0"}) == {}


def test_cache_is_shared_by_either_variable_whatever_the_other_says():
    """A program that sets both, as the earlier two settings were, means what it meant."""
    assert changed({"SAFECACHE_SHARED": "1", "SAFECACHE_TRUST": "private"}) == {"trust": "private", "shared": True}
    assert changed({"SAFECACHE_SHARED": "0", "SAFECACHE_TRUST": "shared"}) == {"shared": True}


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("TIERS", text)
        for text in ("a", "/a.safecache,/b", "redis://h,/a", "redis://h,file:///a", "/a,/b,cache", "cache")
    ]
    + [("TIERS", text) for text in (",", "/a,cache,cache", "/a.safecache,cache", "ftp://h")]
    + [("LIMITS", text) for text in ("10G", "bytes=", "bytes=1,bytes=2", "size=1", ",", "=1")]
    + [("WAIT", text) for text in ("5", "lock=x")]
    + [("ISOLATE", text) for text in ("1,0", "perhaps", "1,timeout=0")]
    + [("STRICT", text) for text in ("1,0", "misses", "misses=2", "hit=1")],
)
def test_bad_combination_names_variable_and_value(variable, text):
    with pytest.raises(ConfigError, match=re.escape(f"SAFECACHE_{variable}={text!r} is not allowed: use ")):
        config.load({f"SAFECACHE_{variable}": text})


@pytest.mark.parametrize("text", ["redis://me:hunter2@h,/a", "/a,redis://me:hunter2@h?timeout=hunter2"])
def test_password_in_a_tier_is_never_shown(text):
    with pytest.raises(ConfigError) as error:
        config.load({"SAFECACHE_TIERS": text})
    assert "hunter2" not in str(error.value) and "redis://h" in str(error.value) and "/a" in str(error.value)


@pytest.mark.parametrize("text", [None, ""], ids=["unset", "empty"])
@pytest.mark.parametrize("variable", DEFAULTS)
def test_unset_or_empty_setting_has_its_default(variable, text):
    assert value(variable, text) == DEFAULTS[variable]


@pytest.mark.parametrize("text", ["1", "true", "yes", "on", "TRUE", "Yes", " on ", "1\n"])
@pytest.mark.parametrize("variable", SWITCHES)
def test_switch_is_on(variable, text):
    assert value(variable, text) is True


@pytest.mark.parametrize("text", ["0", "false", "no", "off", "FALSE", "No", " off "])
@pytest.mark.parametrize("variable", SWITCHES)
def test_switch_is_off(variable, text):
    assert value(variable, text) is False


READ = {
    "SAFECACHE_TRUST": {"signed": "signed", "private": "private", "SIGNED": "signed", " Private ": "private"},
    "SAFECACHE_KEY_FILE": {"/run/secrets/a key ": "/run/secrets/a key "},
    "SAFECACHE_LOWER": dict.fromkeys(("/a:/b c", "/a::/b c:"), ("/a", "/b c")),
    "SAFECACHE_MAX_BYTES": {"10G": 10**10, "500MiB": 500 << 20},
    "SAFECACHE_MAX_FILES": {"100000": 100_000},
    "SAFECACHE_MAX_AGE": {"30d": 30 * 86400},
    "SAFECACHE_ISOLATE": dict.fromkeys(("workers", " Workers "), "workers"),
    "SAFECACHE_COMPILE_TIMEOUT": {"1.5": 1.5},
    "SAFECACHE_COMPILE_MEMORY": {"1G": 10**9, "20GiB": 20 << 30},
    "SAFECACHE_ASSUME_UNCHANGED": {" shop.one, shop.two ,,": ("shop.one", "shop.two")},
    "SAFECACHE_NAMESPACE": {text: text for text in ("prod", "team-a/Model_7.1", "x" * 128, "..", "0")},
}


@pytest.mark.parametrize(("variable", "text"), [(variable, text) for variable in READ for text in READ[variable]])
def test_value_is_read(variable, text):
    assert value(variable, text) == READ[variable][text]


@pytest.mark.parametrize(("text", "isolated", "of_children"), [("0", True, "1"), ("workers", "workers", "workers")])
def test_isolation_is_turned_on_for_this_process_and_its_children(monkeypatch, text, isolated, of_children):
    monkeypatch.setenv("SAFECACHE_ISOLATE", text)
    config.reload()
    config.isolate()
    assert config.current().isolate == isolated
    assert config.copy_environment()["SAFECACHE_ISOLATE"] == of_children


@pytest.mark.parametrize(
    ("variable", "text"),
    [(switch, text) for switch in SWITCHES for text in ("2", "enable", "y", " ", "-1")]
    + [("SAFECACHE_TRUST", text) for text in ("all", "sign", "signed,private", "0")]
    + [("SAFECACHE_FSYNC", text) for text in ("1", "sometimes")]
    + [(path, text) for path in PATHS for text in ("key", "./key", "~/key", " /key")]
    + [("SAFECACHE_MAX_BYTES", text) for text in ("0", "-1G", "10 parsecs", "G", "1e9", "inf", "10Bi")]
    + [("SAFECACHE_MAX_FILES", text) for text in ("0", "-1", "1.5", "10k")]
    + [("SAFECACHE_MAX_AGE", text) for text in ("0d", "30", "1y", "d", "-1d", "30D")]
    + [("SAFECACHE_LOCK_TIMEOUT", text) for text in ("soon", "-1", "nan", "inf", "86401")]
    + [("SAFECACHE_COMPILE_TIMEOUT", text) for text in ("soon", "0", "0.9", "nan", "inf", "86401")]
    + [("SAFECACHE_COMPILE_MEMORY", text) for text in ("999M", "0", "lots", "-2G")]
    + [("SAFECACHE_LOWER", text) for text in ("cache", "/a:b", "/a,b:c")]
    + [("SAFECACHE_REMOTE", text) for text in ("redis:/nobody", "ftp://host", "redis://", "//host", "redis")]
    + [("SAFECACHE_NAMESPACE", text) for text in ("a b", "prod ", "a*", "a\nb", "grün", "a:b", "x" * 129)],
)
def test_bad_value_names_variable_value_and_what_is_allowed(variable, text):
    allowed = settings.VALUES[NAMES[variable]].allowed
    with pytest.raises(ConfigError) as caught:
        value(variable, text)
    assert f"{variable}={text!r}" in str(caught.value) and allowed in str(caught.value)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("variable", (*SWITCHES, "SAFECACHE_TRUST", "SAFECACHE_FSYNC"))
def test_what_is_allowed_spells_out_every_choice(variable):
    choices = {"SAFECACHE_TRUST": settings.TRUST_MODES, "SAFECACHE_FSYNC": settings.FSYNC_MODES}
    for word in choices.get(variable, (*settings._TRUE, *settings._FALSE)):
        assert word in settings.VALUES[NAMES[variable]].allowed


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        pytest.param({"XDG_CONFIG_HOME": "/xdg", "HOME": "/home/user"}, "/xdg", id="xdg"),
        pytest.param({"XDG_CONFIG_HOME": "/xdg"}, "/xdg", id="xdg-without-home"),
        pytest.param({"HOME": "/home/user"}, "/home/user/.config", id="home"),
        pytest.param({"XDG_CONFIG_HOME": "", "HOME": "/home/user"}, "/home/user/.config", id="empty-xdg"),
        pytest.param({"XDG_CONFIG_HOME": "rel", "HOME": "/home/user"}, "/home/user/.config", id="relative-xdg"),
        pytest.param({"XDG_CONFIG_HOME": "~/x", "HOME": "/home/user"}, "/home/user/.config", id="tilde-xdg"),
        pytest.param({"HOME": "rel"}, None, id="relative-home"),
    ],
)
def test_config_home(environ, expected):
    assert config.load(environ).config_home == expected


def test_user_with_a_passwd_entry_needs_no_home_variable(monkeypatch):
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: SimpleNamespace(pw_dir="/home/passwd"))
    assert config.load({}).config_home == "/home/passwd/.config"


def test_empty_home_variable_counts_as_unset(monkeypatch):
    monkeypatch.setenv("HOME", "")
    assert config.load(os.environ | {"XDG_CONFIG_HOME": ""}).config_home != "/.config"


def test_user_without_any_home_has_no_config_home(monkeypatch):
    """As a container's uid without a passwd entry."""

    def unknown(uid):
        raise KeyError(uid)

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert config.load({}).config_home is None


def test_settings_are_read_once_until_reloaded(monkeypatch):
    assert config.current().strict is False
    monkeypatch.setenv("SAFECACHE_STRICT", "1")
    assert config.current().strict is False
    assert config.reload().strict is True
    assert config.current().strict is True


@pytest.mark.parametrize(
    ("environ", "off"),
    [
        pytest.param({}, False, id="nothing"),
        pytest.param({"SAFECACHE": ""}, False, id="empty"),
        pytest.param({"SAFECACHE": "1"}, False, id="switched-on"),
        pytest.param({"SAFECACHE": "off", "SAFECACHE_STRICT": "1"}, True, id="switched-off"),
        pytest.param({"SAFECACHE": "0", "SAFECACHE_STRICT": "perhaps"}, True, id="switched-off-with-a-bad-setting"),
        pytest.param({"SAFECACHE_STRICT": "perhaps"}, False, id="bad-setting"),
    ],
)
def test_switch_counts_as_it_is_now_whatever_else_is_set(monkeypatch, environ, off):
    config.reload()
    for name, text in environ.items():
        monkeypatch.setenv(name, text)
    assert config.is_switched_off() is off


def test_bad_switch_is_neither(monkeypatch):
    monkeypatch.setenv("SAFECACHE", "perhaps")
    with pytest.raises(ConfigError, match="SAFECACHE='perhaps'"):
        config.is_switched_off()


def test_child_environment_is_a_copy(monkeypatch):
    monkeypatch.setenv("SAFECACHE_STRICT", "1")
    environment = config.copy_environment()
    assert environment == dict(os.environ)
    environment["SAFECACHE_STRICT"] = "0"
    assert os.environ["SAFECACHE_STRICT"] == "1"


GUIDE = (ROOT / "safecache" / "guide" / "settings.md").read_text(encoding="utf-8")
ROWS = [line for line in GUIDE.splitlines() if line.startswith("| `SAFECACHE")]


def test_guide_has_a_row_for_every_setting_with_its_default():
    assert all(row.count("|") == 5 and len(row.split("|")[4]) > 20 for row in ROWS)
    shown = dict(re.match(r"\| `(\w+)` \| `([\w.,=]+)` ", row).groups() for row in ROWS)
    assert shown == {
        "SAFECACHE": "1",
        "SAFECACHE_STRICT": "0",
        "SAFECACHE_DISABLE": "unset",
        "SAFECACHE_TRUST": "signed",
        "SAFECACHE_KEY_FILE": "unset",
        "SAFECACHE_KEYRING": "unset",
        "SAFECACHE_NAMESPACE": "default",
        "SAFECACHE_FSYNC": "auto",
        "SAFECACHE_TIERS": "unset",
        "SAFECACHE_LIMITS": "unset",
        "SAFECACHE_WAIT": "lock=120,compile=300",
        "SAFECACHE_EXEC_DIR": "unset",
        "SAFECACHE_ISOLATE": "0",
        "SAFECACHE_ASSUME_UNCHANGED": "unset",
        "SAFECACHE_RECOMPILE_SAMPLE": "0",
        "SAFECACHE_EXPLAIN": "0",
        "SAFECACHE_METRICS": "0",
    }


def test_guide_has_the_rows_in_order_with_what_is_allowed():
    shown = [[cell.strip(" `") for cell in row.split("|")[1:4:2]] for row in ROWS]
    assert shown == [[setting.variable, setting.allowed] for setting in settings.SETTINGS]


def environment_readers(source: str) -> list[int]:
    words = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}
    if not any(word in source for word in words):
        return []
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if (isinstance(node, ast.Attribute) and node.attr in words)
        or (isinstance(node, ast.ImportFrom) and words & {alias.name for alias in node.names})
    ]


def test_only_config_reads_the_process_environment():
    """But for workers of the compile service, which take over that of the process whose jobs they run.

    And safecache_entry, which is to find out whether anything asks for safecache before it imports any of it.
    """
    sources = [path for path in (ROOT / "safecache").rglob("*.py") if "bootstrap" not in path.parts]
    sources.append(ROOT / "safecache" / "bootstrap" / "entry" / "safecache_entry.py")
    readers = {path.name: environment_readers(path.read_text(encoding="utf-8")) for path in sources}
    assert all(readers.pop(name) for name in ("config.py", "server.py", "safecache_entry.py"))
    assert {name: lines for name, lines in readers.items() if lines} == {}


def test_password_in_a_url_is_never_shown():
    with pytest.raises(ConfigError) as error:
        value("SAFECACHE_REMOTE", "memcached://user:hunter2@host:1/0?password=hunter2")
    assert "hunter2" not in str(error.value) and "memcached://host:1/0" in str(error.value)
    assert settings.hide_password("rediss://:hunter2@h:1/0?a=b") == "rediss://h:1/0"
    assert settings.hide_password("s3://bucket/prefix") == "s3://bucket/prefix"
