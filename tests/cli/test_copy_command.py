"""`safecache copy` between caches, packs and remotes, and commands of before that stand for others now."""

from __future__ import annotations

import json

import pytest
from helpers import filled

pytest.importorskip("zstandard")

ALL = filled.BUNDLES


@pytest.fixture
def filled_cache(tmp_path, isolated):
    return filled.fill(tmp_path / "filled")


@pytest.fixture
def copy(run):
    """Copy, and return what the command counts."""

    def copied(*places, code=0):
        said = run("copy", *places, "--json")
        assert said.code == code, (said.out, said.err)
        return json.loads(said.out)

    return copied


def test_each_place_is_copied_to_each_other(copy, run, filled_cache, tmp_path):
    pack, remote = tmp_path / "a.safecache", f"file://{tmp_path}/remote"
    (tmp_path / "remote").mkdir()
    assert copy(filled_cache, pack)["copied"] == ALL
    told = copy(pack, remote)
    assert (told["copied"], told["destination"], told["problems"]) == (ALL, remote, [])
    assert copy(remote, tmp_path / "from remote")["copied"] == ALL
    assert copy(remote, tmp_path / "b.safecache")["copied"] == ALL
    assert copy(tmp_path / "b.safecache", tmp_path / "from pack")["copied"] == ALL
    for name in ("from remote", "from pack"):
        assert filled.contents(tmp_path / name) == filled.contents(filled_cache)
    assert run("verify", tmp_path / "from pack").code == 0
    assert copy(pack, filled_cache, remote, tmp_path / "from pack")["already_there"] == ALL


def test_single_place_is_the_destination_of_this_environment_s_caches(copy, filled_cache, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(filled_cache))
    monkeypatch.setenv("TRITON_CACHE_DIR", "")
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path / "vllm"))
    assert copy(tmp_path / "a.safecache")["copied"] == ALL
    assert copy("here", tmp_path / "b.safecache")["copied"] == ALL
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "new"))
    assert copy(tmp_path / "a.safecache", "here")["copied"] == ALL
    assert filled.contents(tmp_path / "new") == filled.contents(filled_cache)


def test_nothing_is_copied_of_a_pack_that_was_altered(copy, run, filled_cache, tmp_path):
    pack = tmp_path / "a.safecache"
    copy(filled_cache, pack)
    content = bytearray(pack.read_bytes())
    content[len(content) // 2] ^= 1
    pack.write_bytes(content)
    said = run("copy", pack, tmp_path / "there")
    assert said.code == 1 and "a.safecache" in said.err and not (tmp_path / "there").exists()


def test_what_does_not_verify_is_named_and_left(copy, filled_cache, tmp_path):
    (entry,) = filled_cache.glob("fxgraph/*/*/*")
    good = entry.read_bytes()
    entry.write_bytes(bytes([good[0] ^ 1]) + good[1:])
    told = copy(filled_cache, tmp_path / "there", code=1)
    assert told["copied"] == ALL - 1 and filled.GRAPH in told["problems"][0]["name"]
    entry.write_bytes(good)
    assert copy(filled_cache, tmp_path / "there")["copied"] == 1


def test_remote_that_cannot_be_used_is_named_without_its_password(run, filled_cache):
    said = run("copy", filled_cache, "redis://me:secret@127.0.0.1:9/0")
    assert said.code == 1 and "127.0.0.1:9" in said.err + said.out and "secret" not in said.err + said.out


@pytest.mark.parametrize(
    ("before", "now"),
    [(["du"], ["ls", "--sum"]), (["clean", "--dry-run"], ["gc", "--all", "--dry-run"])],
    ids=["du", "clean"],
)
def test_command_of_before_is_another_now(run, filled_cache, before, now):
    old, new = run(*before, filled_cache, "--json"), run(*now, filled_cache, "--json")
    assert (old.code, old.out) == (new.code, new.out) and json.loads(new.out)


def test_overview_names_no_command_of_before(run):
    said = run("--help").out
    assert "  copy " in said and not any(
        f"  {name} " in said for name in ("push", "pull", "pack", "merge", "du", "clean")
    )
