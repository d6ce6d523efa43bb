"""A mega-cache artifact is parsed if all that it claims to hold is in it, and of it is taken what we can verify."""

from __future__ import annotations

import base64
import zlib
from operator import attrgetter
from types import SimpleNamespace

import pytest

from safecache.entries import mega_caches
from safecache.errors import EntryRefusedError
from safecache.integrations import compiler_cache
from safecache.reporting import events

KEY = attrgetter("key")


def number(value):
    return value.to_bytes(8, "big")


def field(content):
    return number(len(content)) + content


def container(*types, version=1):
    """As torch makes one of (type, [(key, content), …])."""
    body = number(version)
    for name, artifacts in types:
        body += field(base64.b64encode(name.encode())) + number(len(artifacts))
        body += b"".join(field(base64.b64encode(key.encode())) + field(content) for key, content in artifacts)
    return checked(body)


def checked(body):
    return zlib.crc32(body).to_bytes(4, "big") + body


GOOD = container(("inductor", [("key", b"content"), ("other", b"")]), ("pgo", []), ("autotune", [("a/b", b"{}")]))
HUGE = {
    "artifacts": checked(number(1) + field(b"") + number(1 << 62) + b"\0\0\0\0"),
    "a type": checked(number(1) + number(1 << 62)),
    "a key": checked(number(1) + field(b"") + number(1) + number(1 << 63)),
    "a content": checked(number(1) + field(b"") + number(1) + field(b"") + number((1 << 64) - 1)),
    "half a number": checked(number(1) + b"\0\0\0"),
}


def parse(content):
    return compiler_cache.deserialize(lambda given: ("parsed", given), None, (content,), {})


@pytest.mark.parametrize("content", [GOOD, container()], ids=["some", "none"])
def test_container_that_is_whole_is_parsed(content):
    assert parse(content) == ("parsed", content) and events.read_counters() == {}


@pytest.mark.parametrize("content", HUGE.values(), ids=HUGE)
def test_container_that_claims_more_than_it_holds_is_as_good_as_damaged(content):
    assert len(content) < 64 and parse(content) is None and events.read_counters() == {"damaged": 1}


@pytest.mark.parametrize("content", HUGE.values(), ids=HUGE)
def test_container_that_claims_more_than_it_holds_is_an_error_in_strict_mode(content, settings):
    settings(SAFECACHE_STRICT=1)
    with pytest.raises(EntryRefusedError, match="claims to hold more than there is in it"):
        parse(content)


def test_container_cut_short_anywhere_is_not_parsed_as_one_that_is_whole():
    """But where a type ends: that its checksum does not fit, torch says."""
    ends = [end for end in range(13, len(GOOD)) if mega_caches.accept(checked(GOOD[4:end]))]
    whole = [container(("inductor", [("key", b"content"), ("other", b"")]))]
    whole.append(container(("inductor", [("key", b"content"), ("other", b"")]), ("pgo", [])))
    assert ends == [len(content) for content in whole]


@pytest.mark.parametrize("content", [b"", b"abc", checked(b""), container(version=2) + b"x"])
def test_what_torch_refuses_by_itself_is_left_to_it(content):
    assert parse(content) == ("parsed", content)


def test_more_artifacts_than_any_program_has_are_not_parsed(monkeypatch):
    monkeypatch.setattr(mega_caches, "_MOST_ARTIFACTS", 5)
    assert mega_caches.accept(container(("inductor", [("key", b"")] * 4)))
    assert not mega_caches.accept(container(("inductor", [("key", b"")] * 5)))
    assert not mega_caches.accept(container(*[("inductor", [])] * 6))


def test_artifact_of_a_type_that_we_do_not_know_is_refused_by_name(caplog):
    """Whoever has registered it unpickles what nobody has verified."""
    arrived = {"someones": [SimpleNamespace(key="some/key", content=b"\x80")]}
    assert mega_caches.select_accepted(arrived, KEY) == {"someones": []}
    assert events.read_counters() == {"unknown format": 1}
    assert "'some/key'" in caplog.text and "'someones'" in caplog.text


def test_artifact_of_a_type_that_we_do_not_know_is_an_error_in_strict_mode(settings):
    settings(SAFECACHE_STRICT=1)
    with pytest.raises(EntryRefusedError, match="someones"):
        mega_caches.select_accepted({"someones": [SimpleNamespace(key="key", content=b"")]}, KEY)
