"""A remote that this installation cannot use is named once, as the process starts, with the line that installs it."""

from __future__ import annotations

import pytest
from conftest import python
from hooks.conftest import FAKE_TORCH

from safecache.errors import ConfigError
from safecache.remote import client, extras
from safecache.remote.client import Unavailable

START = """
import sys
{before}
import safecache
print(*sorted(name for name in sys.modules if name.split(".")[0] in ("redis", "obstore", "zstandard", "asyncio", "ssl")
              or name.startswith("safecache.remote")))
"""


def start(tmp_path, before="", **environment):
    environment |= {"XDG_CONFIG_HOME": str(tmp_path), "PYTHONWARNINGS": "error"}
    done = python(START.format(before=before), path=FAKE_TORCH, env=environment)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize(
    ("url", "library", "extra", "strict"),
    [
        ("redis://user:s3cret@there/0", "redis", "redis", "0"),
        ("valkey://there/0", "zstandard", "redis", "0"),
        # A cache without its remote is whole: what is missing is compiled.
        ("s3://bucket/x", "obstore", "object", "1"),
    ],
)
def test_missing_library_is_named_at_the_start(tmp_path, url, library, extra, strict):
    done = start(tmp_path, f"sys.modules['{library}'] = None", SAFECACHE_REMOTE=url, SAFECACHE_STRICT=strict)
    [line] = done.stderr.splitlines()
    assert f"{library} is not installed" in line and f"pip install 'safecache[{extra}]'" in line
    assert "s3cret" not in line


def test_a_start_imports_no_engine(tmp_path):
    pytest.importorskip("redis")
    pytest.importorskip("zstandard")
    done = start(tmp_path, SAFECACHE_REMOTE="redis://127.0.0.1:1/0")
    assert done.stderr == ""
    assert done.stdout.split() == ["safecache.remote", "safecache.remote.extras"]


def test_without_a_remote_nothing_of_it_is_imported(tmp_path):
    done = start(tmp_path)
    assert (done.stdout.strip(), done.stderr) == ("", "")


@pytest.mark.parametrize("url", ["redis://there:port/0", "redis://[::1/0", "redis://there:99999/0"])
def test_address_that_is_none_is_a_bad_setting(settings, url):
    with pytest.raises(ConfigError, match="SAFECACHE_REMOTE"):
        settings(SAFECACHE_REMOTE=url)


def test_it_is_said_once_and_nobody_is_asked(settings, monkeypatch, caplog):
    settings(SAFECACHE_REMOTE="redis://127.0.0.1:1/0")
    monkeypatch.setattr(extras.config, "is_installed", lambda name: False)
    assert extras.report("redis://127.0.0.1:1/0")
    for remote in (client.current(), client.get_background()):
        assert not remote.can_read()
        with pytest.raises(Unavailable):
            remote.write("name", b"")
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1
