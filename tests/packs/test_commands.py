"""Packs as they are made, unpacked, compared and joined; and what is in a cache already stays."""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import pytest
from helpers import filled
from helpers.caches import key
from helpers.key_cases import PRIVATE, put
from helpers.sealed import flipped

from packs import forged
from safecache.built_code import vllm_files
from safecache.packs import archive
from safecache.places import layout
from safecache.reporting.kinds import Kind
from safecache.signing import keyring, provenance, seal
from safecache.testing import failing
from safecache.upkeep import packing


def test_what_is_packed_is_unpacked_as_it_was(cache, pack, counted, tmp_path):
    there = tmp_path / "there"
    assert counted("unpack", pack, there) == (0, {"copied": filled.BUNDLES})
    assert filled.contents(there) == filled.contents(cache)
    assert counted("unpack", pack, there) == (0, {"already_there": filled.BUNDLES})


def test_the_same_caches_give_the_same_bytes(cache, pack, run, tmp_path):
    """Wherever they lie, and however often they were used."""
    moved = tmp_path / "elsewhere" / "cache"
    shutil.copytree(cache, moved)
    for path in moved.rglob("*"):
        os.utime(path, (1, 1), follow_symlinks=False)
    assert run("pack", moved, "-o", tmp_path / "again.safecache").code == 0
    assert (tmp_path / "again.safecache").read_bytes() == pack.read_bytes()


@pytest.mark.skipif(shutil.which("zstd") is None, reason="zstd is not installed")
def test_standard_tools_read_it(pack, cache, tmp_path):
    listed = subprocess.run(["tar", "--zstd", "-tf", pack], capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    assert listed[:2] == ["manifest.json", "manifest.seal"] and any(filled.GRAPH in name for name in listed)
    (tmp_path / "by tar").mkdir()
    subprocess.run(["tar", "--zstd", "-xf", pack, "-C", tmp_path / "by tar"], check=True)
    assert filled.contents(tmp_path / "by tar" / "inductor") == filled.contents(cache)


def test_manifest_says_what_it_was_made_with(cache, pack, monkeypatch):
    stated = forged.statement(pack.read_bytes())
    assert stated["_type"] == "https://in-toto.io/Statement/v1"
    assert {group["name"] for group in stated["subject"]} >= {f"inductor:fx_graph/{filled.GRAPH}"}
    made_with = stated["predicate"]["made_with"]
    assert made_with["torch"] == provenance.torch_version() and made_with["cpu"] == provenance.list_instructions()
    text = pack.read_bytes()
    assert str(cache).encode() not in forged.members(forged.frames(text)[0])["manifest.json"]


def test_gpus_are_those_of_what_is_packed(cache, run, tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "_find_architectures", lambda: "sm_90")
    filled.entry(cache, Kind.FX_ENTRY, "f" + "b" * 51, b"for a GPU")
    monkeypatch.setattr(provenance, "_find_architectures", lambda: "")
    run("pack", cache, "-o", tmp_path / "gpu.safecache")
    assert archive.open_pack(str(tmp_path / "gpu.safecache")).manifest["made_with"]["gpu"] == "sm_90"


def test_what_does_not_verify_is_not_packed(cache, counted, tmp_path):
    (graph,) = (cache / "fxgraph" / filled.GRAPH[1:3] / filled.GRAPH).iterdir()
    graph.write_bytes(flipped(graph.read_bytes(), 8))
    code, found = counted("pack", cache, "-o", tmp_path / "some.safecache")
    assert (code, found) == (1, {"copied": filled.BUNDLES - 1, "refused": 1})
    assert all(group.ref.key != filled.GRAPH for group in archive.open_pack(str(tmp_path / "some.safecache")).groups)


def test_what_is_here_and_verifies_stays(pack, counted, tmp_path):
    there = tmp_path / "there"
    newer = filled.kernel(there / "triton" / "1", code=b"a newer cubin")
    filled.entry(there, Kind.FX_ENTRY, filled.GRAPH, b"with other guards")
    assert counted("unpack", pack, there) == (0, {"copied": filled.BUNDLES - 1, "already_there": 1})
    assert (newer / "k.cubin").read_bytes() == b"a newer cubin"
    assert len(list((there / "fxgraph" / filled.GRAPH[1:3] / filled.GRAPH).iterdir())) == 2


def test_what_is_here_and_does_not_verify_is_replaced(pack, counted, tmp_path):
    there = tmp_path / "there"
    kernel = filled.kernel(there / "triton" / "1")
    (kernel / "k.cubin").write_bytes(b"damaged")
    library = there / filled.LIBRARY[1:3] / f"{filled.LIBRARY}.so"
    filled.write(library, b"planted")
    assert counted("unpack", pack, there) == (0, {"copied": filled.BUNDLES})
    assert (kernel / "k.cubin").read_bytes() == b"a cubin" and library.read_bytes() == b"a library"


def test_unpacking_that_was_cut_short_is_taken_up(pack, counted, tmp_path):
    there = tmp_path / "there"
    with failing("rename", "ENOSPC", below=there / "triton"):
        code, found = counted("unpack", pack, there)
    assert code == 1 and found["failed"]
    assert counted("unpack", pack, there)[1]["copied"] >= found["failed"]
    assert counted("unpack", pack, there) == (0, {"already_there": filled.BUNDLES})


def test_a_pack_that_cannot_be_written_leaves_what_was_there(cache, pack, run, tmp_path):
    before = pack.read_bytes()
    filled.entry(cache, Kind.FX_ENTRY, filled.GRAPH, b"with other guards")
    with failing("write", "ENOSPC", below=tmp_path):
        said = run("pack", cache, "-o", pack)
    assert said.code == 1 and pack.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.endswith(".tmp")) == []


def test_what_a_killed_packing_left_is_removed(cache, run, tmp_path):
    left, others = tmp_path / ".0123456789abcdef.tmp", tmp_path / ".1.2.tmp"
    for path in (left, others):
        path.write_bytes(b"part of a pack")
        os.utime(path, (0, 0))
    assert run("pack", cache, "-o", tmp_path / "model.safecache").code == 0
    assert not left.exists() and others.exists(), "what is not ours stays"


def test_sealed_with_a_private_key_it_is_read_with_the_public_one(cache, run, settings, tmp_path):
    put(PRIVATE)
    keyring.renew()
    cache = filled.fill(tmp_path / "signed")
    assert run("pack", cache, "-o", tmp_path / "signed.safecache").code == 0
    assert archive.open_pack(str(tmp_path / "signed.safecache")).groups


def test_packs_differ_in_what_was_added_or_compiled_otherwise(cache, pack, run, tmp_path):
    assert run("diff", cache, pack).code == 0
    added = filled.entry(cache, Kind.FX_ENTRY, filled.GRAPH, b"with other guards")
    filled.kernel(cache / "triton" / "1", code=b"another cubin")
    said = run("diff", pack, cache, "--json")
    found = {row["name"]: row for row in json.loads(said.out)["differences"]}
    assert said.code == 1 and len(found) == 2
    assert found[f"inductor:fx_graph/{filled.GRAPH}"]["b"] == [added.name]
    assert found[f"inductor/triton/1:kernel/{filled.KERNEL}"]["differ"] == ["k.cubin"]
    assert f"only in B: {added.name}" in run("diff", pack, cache).out


def test_caches_of_several_ranks_are_joined(cache, pack, counted, tmp_path):
    other = filled.fill(tmp_path / "other")
    filled.entry(other, Kind.FX_ENTRY, filled.GRAPH, b"with other guards")
    filled.entry(other, Kind.FX_ENTRY, "f" + "b" * 51, b"another graph")
    filled.kernel(other / "triton" / "1", code=b"tuned otherwise")
    merged = tmp_path / "merged.safecache"
    assert counted("merge", pack, other, "-o", merged) == (0, {"copied": filled.BUNDLES + 1})
    found = archive.open_pack(str(merged))
    files = {group.ref.key: {file.name: file.content for file in found.read(group)} for group in found.groups}
    assert len(files[filled.GRAPH]) == 2 and "f" + "b" * 51 in files
    assert files[filled.KERNEL]["k.cubin"] == b"a cubin", "the first one's"
    assert packing.pack([str(pack)], str(tmp_path / "same.safecache"), lambda *_: None)
    assert (tmp_path / "same.safecache").read_bytes() == pack.read_bytes()


def test_a_pack_among_the_sources_that_is_not_used_ends_it(cache, pack, run, tmp_path):
    pack.write_bytes(pack.read_bytes()[:-1])
    said = run("merge", cache, pack, "-o", tmp_path / "merged.safecache")
    assert said.code == 1 and str(pack) in said.err and not (tmp_path / "merged.safecache").exists()


def test_name_without_the_ending_is_no_pack(cache, run, tmp_path):
    said = run("pack", cache, "-o", tmp_path / "model.tar")
    assert said.code == 2 and ".safecache" in said.err


def test_tritons_own_cache_and_inductors_go_where_these_are_here(cache, run, counted, tmp_path, monkeypatch):
    own = tmp_path / "triton"
    filled.kernel(own, key("k", "own").upper())
    assert run("pack", cache, own, "-o", tmp_path / "both.safecache").code == 0
    there, home = tmp_path / "there", tmp_path / "home"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(there))
    monkeypatch.setenv("TRITON_HOME", str(home))
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    assert counted("unpack", tmp_path / "both.safecache") == (0, {"copied": filled.BUNDLES + 1})
    assert (there / "triton" / "1" / filled.KERNEL / "k.cubin").exists()
    assert (home / ".triton" / "cache" / key("k", "own").upper() / "k.cubin").exists()


HASH = "0" * 64


def test_vllms_models_and_caches_keep_their_places(run, counted, tmp_path, monkeypatch):
    top = tmp_path / "vllm" / "torch_compile_cache"
    model = f"torch_aot_compile/{HASH}/rank_0_0/model"
    signing = keyring.current().signing
    content = seal.attach(b"a model", Kind.AOT_FUNCTION, "", signing, provenance.make_statement(Kind.AOT_FUNCTION))
    filled.write(top / model, content)
    nested = f"torch_aot_compile/{HASH}/rank_0_0/inductor_cache"
    filled.fill(top / nested)
    assert run("pack", tmp_path / "vllm", "-o", tmp_path / "vllm.safecache").code == 0
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path / "there"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.setenv("TRITON_HOME", str(tmp_path / "home"))
    assert counted("unpack", tmp_path / "vllm.safecache") == (0, {"copied": filled.BUNDLES + 1})
    there = tmp_path / "there" / "torch_compile_cache"
    assert (there / model).read_bytes() == content
    assert filled.contents(there / nested) == filled.contents(top / nested)
    assert [bundle.key for bundle in vllm_files.find_bundles(str(there))] == [model]


def test_without_zstandard_it_says_what_to_install(cache, run, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    said = run("pack", cache, "-o", tmp_path / "model.safecache")
    assert said.code == 78 and "pip install 'safecache[pack]'" in said.err


def test_headers_and_sources_stay_where_they_are(cache, run, tmp_path):
    filled.write(cache / "ab" / f"{key('c', 'source')}.py", b"print()")
    filled.write(cache / layout.HEADERS_FOLDER / "ab" / f"{key('c', 'header')}.h.gch", b"header")
    assert run("pack", cache, "-o", tmp_path / "model.safecache").code == 0
    assert len(archive.open_pack(str(tmp_path / "model.safecache")).groups) == filled.BUNDLES
