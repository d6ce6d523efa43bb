"""`safecache push oci://…` and `pull`: only what a trusted key has sealed is sent, kept or unpacked."""

from __future__ import annotations

import json
import sys

import pytest
from helpers import filled

pytest.importorskip("zstandard")

from safecache.upkeep import oci

from .conftest import PASSWORD


@pytest.fixture
def cache(tmp_path):
    return filled.fill(tmp_path / "cache")


@pytest.fixture
def place(served, request):
    """A repository of the test's own."""
    return f"oci://{served.host}/{request.node.originalname}:v1"


def told(said, code=0):
    assert said.code == code, (said.out, said.err)
    return json.loads(said.out)


def test_a_cache_goes_there_and_comes_back(run, place, cache, tmp_path):
    pushed = told(run("push", place, cache, "--plain-http", "--json"))
    assert (pushed["groups"], pushed["problems"]) == (filled.BUNDLES, [])
    pulled = told(run("pull", place, tmp_path / "there", "--plain-http", "--json"))
    assert (pulled["copied"], pulled["refused"], pulled["destination"]) == (filled.BUNDLES, 0, pushed["reference"])
    assert filled.contents(tmp_path / "there") == filled.contents(cache)
    assert run("verify", tmp_path / "there").code == 0
    again = told(run("pull", f"oci://{pushed['reference']}", tmp_path / "there", "--plain-http", "--json"))
    assert again["already_there"] == filled.BUNDLES


def test_a_pack_goes_there_as_it_is_and_is_kept_without_being_unpacked(run, place, cache, tmp_path):
    mine, copy = tmp_path / "mine.safecache", tmp_path / "copy.safecache"
    assert run("pack", cache, "-o", mine).code == 0
    said = run("push", place, mine, "--plain-http")
    assert said.code == 0 and "packed" in said.lines[0] and "@sha256:" in said.lines[1]
    assert run("push", place, mine, "--plain-http").lines == said.lines
    before = sorted(path for path in tmp_path.rglob("*") if path.name != copy.name)
    assert run("pull", place, "-o", copy, "--plain-http").code == 0
    assert copy.read_bytes() == mine.read_bytes()
    assert sorted(path for path in tmp_path.rglob("*") if path != copy) == before


def test_by_default_it_fills_the_caches_of_this_environment(run, place, cache, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(cache))
    monkeypatch.setenv("TRITON_CACHE_DIR", "")
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path / "vllm"))
    assert run("push", place, "--plain-http").code == 0
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "new"))
    assert run("pull", place, "--plain-http").code == 0
    assert filled.contents(tmp_path / "new") == filled.contents(cache)
    assert not list((tmp_path / "new").glob("*.tmp")) + list((tmp_path / "new").glob(".*.tmp"))


def refused(said, *words):
    assert said.code == 1, (said.out, said.err)
    for word in words:
        assert word in said.err


@pytest.fixture
def of_another(place, served, cache, tmp_path, run, settings, monkeypatch):
    """A pack there that another key has sealed."""
    with monkeypatch.context() as theirs:
        theirs.setenv("XDG_CONFIG_HOME", str(tmp_path / "theirs"))
        settings()
        import safecache

        safecache.reset()
        filled.fill(tmp_path / "made")
        assert run("push", place, tmp_path / "made", "--plain-http").code == 0
    settings()
    safecache.reset()


def test_what_another_key_has_sealed_is_not_kept_and_not_unpacked(run, place, of_another, tmp_path):
    (tmp_path / "there").mkdir()
    copy = tmp_path / "there" / "copy.safecache"
    copy.write_bytes(b"what was there")
    refused(run("pull", place, "-o", copy, "--plain-http"), "v1 is refused", "key")
    assert copy.read_bytes() == b"what was there"
    refused(run("pull", place, tmp_path / "there", "--plain-http"), "v1 is refused")
    assert list((tmp_path / "there").iterdir()) == [copy]


def test_a_file_that_is_no_pack_is_not_sent(run, place, tmp_path):
    (tmp_path / "a.safecache").write_bytes(b"no pack")
    assert run("push", place, tmp_path / "a.safecache", "--plain-http").code == 1
    refused(run("pull", place, tmp_path / "there", "--plain-http"), "v1: skopeo says: ", "unknown")


def test_a_pack_that_was_changed_there_is_refused(run, place, served, cache, tmp_path):
    """With digests that are right: whoever may write to the registry has made them."""
    mine = tmp_path / "mine.safecache"
    run("pack", cache, "-o", mine)
    content = bytearray(mine.read_bytes())
    content[-200] ^= 1
    mine.write_bytes(content)
    oci.push(oci.parse_reference(place), str(mine), {}, has_tls=False)
    there = tmp_path / "there"
    refused(run("pull", place, there, "--plain-http"), "v1 is refused", "is not what was packed")
    assert [path for path in there.rglob("*") if path.is_file()] == []


def test_nothing_is_not_pushed(run, place, tmp_path):
    (tmp_path / "empty").mkdir()
    refused(run("push", place, tmp_path / "empty", "--plain-http"), "nothing that verifies")


def test_a_mac_key_has_no_pem(run):
    refused(run("keys", "--pem"), "MAC key")


def test_a_reference_with_a_password_is_not_shown(run, cache):
    refused(run("push", f"oci://user:{PASSWORD}@127.0.0.1:1/a:v1", cache), "docker login")
    assert PASSWORD not in run("push", f"oci://user:{PASSWORD}@127.0.0.1:1/a:v1", cache).err


def test_a_pack_larger_than_is_allowed(run, place, cache, tmp_path):
    run("push", place, cache, "--plain-http")
    refused(run("pull", place, tmp_path / "there", "--max-size", "1k", "--plain-http"), "more than the 1000")


@pytest.mark.parametrize(
    "words",
    [
        ("pull", "oci://a.b/c:v1", "--max-size", "much"),
        ("pull", "oci://a.b/c:v1", "here", "there"),
    ],
)
def test_misused(run, words):
    assert run(*words).code == 2


def test_what_is_not_installed_is_named_with_the_line_that_installs_it(run, cache, monkeypatch):
    monkeypatch.setenv("PATH", "")
    said = run("push", "oci://127.0.0.1:1/a:v1", cache)
    assert said.code == 78 and "apt-get install skopeo" in said.err
    monkeypatch.setitem(sys.modules, "zstandard", None)
    said = run("push", "oci://127.0.0.1:1/a:v1", cache)
    assert said.code == 78 and "packs need zstandard: pip install 'safecache[pack]'" in said.err
