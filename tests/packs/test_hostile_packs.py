"""What may come as a pack: cut, changed, forged, or made with a trusted key to lead out of the cache. None of it is used."""

from __future__ import annotations

import os
import tarfile
import tracemalloc

import pytest
from helpers import filled
from helpers.key_cases import MAC
from helpers.sealed import flipped

from packs import forged
from safecache.errors import PackRefusedError
from safecache.packs import archive
from safecache.places.refs import Ref
from safecache.reporting.kinds import Kind
from safecache.signing import keyring
from safecache.store import bundles

GRAPH_FILE = "p" * 51


def refused(path, content) -> str:
    path.write_bytes(content)
    with pytest.raises(PackRefusedError) as caught:
        found = archive.open_pack(str(path))
        for group in found.groups:
            found.read(group)
    assert str(path) in str(caught.value)
    return str(caught.value)


def below(directory):
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


def test_every_length_but_its_own_is_refused(pack, tmp_path):
    content = pack.read_bytes()
    ends = [sum(map(len, forged.frames(content)[:number])) for number in range(len(forged.frames(content)))]
    for length in {0, 1, 3, 100, *ends, *(end + 1 for end in ends), *(end - 1 for end in ends[1:]), len(content) - 1}:
        refused(tmp_path / "cut.safecache", content[:length])
    refused(tmp_path / "long.safecache", content + b"\0")
    refused(tmp_path / "long.safecache", content + forged.compress(b"more"))


def test_a_bit_of_a_group_is_refused_before_anything_is_written(pack, run, tmp_path):
    content = pack.read_bytes()
    begin, end = len(forged.frames(content)[0]) * 8, (len(content) - len(archive.make_last_frame())) * 8
    for number in range(200):
        place = begin + (end - begin) * number // 200
        (tmp_path / "changed.safecache").write_bytes(flipped(content, place))
        said = run("unpack", tmp_path / "changed.safecache", tmp_path / "there")
        assert said.code == 1 and "is not what was packed" in said.err, place
    assert not (tmp_path / "there").exists()


def test_a_bit_of_the_manifest_is_refused_or_means_nothing(pack, tmp_path):
    """Its seal covers what it says, and not how it is compressed: whether a bit there means nothing depends on what it says."""
    content = pack.read_bytes()
    changed = tmp_path / "changed.safecache"
    outcomes = []
    for place in range(0, len(forged.frames(content)[0]) * 8, 37):
        changed.write_bytes(flipped(content, place))
        try:
            outcomes.append(archive.open_pack(str(changed)).manifest == archive.open_pack(str(pack)).manifest)
        except PackRefusedError:
            outcomes.append(None)
    assert set(outcomes) <= {True, None} and outcomes.count(None) > len(outcomes) / 2


def test_manifest_of_another_pack(pack, cache, run, tmp_path):
    filled.entry(cache, Kind.FX_ENTRY, filled.GRAPH, b"with other guards")
    assert run("pack", cache, "-o", tmp_path / "other.safecache").code == 0
    ours, theirs = forged.frames(pack.read_bytes()), forged.frames((tmp_path / "other.safecache").read_bytes())
    refused(tmp_path / "mixed.safecache", b"".join([ours[0], *theirs[1:]]))
    refused(tmp_path / "mixed.safecache", b"".join([theirs[0], *ours[1:]]))


def test_frames_in_another_order(pack, tmp_path):
    first, one, two, *rest = forged.frames(pack.read_bytes())
    assert "is not what was packed" in refused(tmp_path / "mixed.safecache", b"".join([first, two, one, *rest]))


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"key": MAC}, "key"),
        ({"kind": Kind.PARCEL}, "kind"),
        ({"name": "manifest.xml"}, ""),
        ({"namespace": "production"}, "namespace"),
    ],
)
def test_manifest_that_is_sealed_otherwise(how, said, pack, tmp_path):
    _, *rest = forged.frames(pack.read_bytes())
    stated = forged.statement(pack.read_bytes())
    (tmp_path / "same.safecache").write_bytes(b"".join([forged.manifest(stated), *rest]))
    assert archive.open_pack(str(tmp_path / "same.safecache")).groups
    assert said in refused(tmp_path / "other.safecache", b"".join([forged.manifest(stated, **how), *rest]))


@pytest.mark.parametrize("cut", [1, -1, 100])
def test_where_the_seal_begins_is_for_the_seal_to_say(cut, pack, tmp_path):
    _, *rest = forged.frames(pack.read_bytes())
    stated = forged.manifest(forged.statement(pack.read_bytes()), cut=cut)
    (tmp_path / "cut.safecache").write_bytes(b"".join([stated, *rest]))
    assert archive.open_pack(str(tmp_path / "cut.safecache")).groups == archive.open_pack(str(pack)).groups


def test_key_that_was_revoked_since(pack, run):
    assert run("revoke", keyring.current().signing.id.hex()).code == 0
    keyring.renew()
    with pytest.raises(PackRefusedError, match="revoked"):
        archive.open_pack(str(pack))


@pytest.mark.parametrize("size", [1 << 40, (1 << 26) + 1])
def test_manifest_that_claims_to_be_large_is_not_decompressed(size, tmp_path, monkeypatch):
    header = b"\x28\xb5\x2f\xfd" + bytes([0xC0, 0x58]) + size.to_bytes(8, "little")
    assert "size" in refused(tmp_path / "bomb.safecache", header + b"\0" * 100)


def test_manifest_that_grows_beyond_what_it_claims(tmp_path):
    bomb = bytearray(forged.compress(b"\0" * (1 << 25)))
    # The header of a frame with a content size of four bytes.
    assert forged.zstandard.get_frame_parameters(bytes(bomb)).content_size == 1 << 25
    place = bytes(bomb).index((1 << 25).to_bytes(4, "little"))
    bomb[place : place + 4] = (4096).to_bytes(4, "little")
    refused(tmp_path / "bomb.safecache", bytes(bomb))


def header(name, size, type=tarfile.REGTYPE, **fields):
    about = tarfile.TarInfo(name)
    about.size, about.type, about.pax_headers = size, type, fields
    return about.tobuf(tarfile.GNU_FORMAT if size >= 8**11 else tarfile.PAX_FORMAT)


SPARSE = header("manifest.json", 0, tarfile.GNUTYPE_SPARSE)
SPARSE = SPARSE[:386] + b"%011o\0%011o\0" % (0, 1) + SPARSE[410:483] + b"%011o\0" % (1 << 32) + SPARSE[495:]
UNSEALED = {
    "of 2^80 bytes": header("manifest.json", 1 << 80),
    "of 4 GiB": header("manifest.json", (1 << 32) - 1) + b"\0" * 512,
    "sparse": SPARSE + b"\0" * 512,
    "pax headers": header("manifest.json", 1, **{f"k{number}": "v" * 90 for number in range(20_000)}) + b"x" * 512,
    "many members": forged.tar(*((f"m{number}", b"") for number in range(20_000))),
    "another first": forged.tar(("other", b""), ("manifest.json", b"{}"), ("manifest.seal", b"")),
    "another behind": forged.tar(("manifest.json", b"{}"), ("manifest.seal", b""), ("other", b"")),
    "link": header("manifest.json", 0, tarfile.SYMTYPE) * 2,
    "no digits": b"manifest.json".ljust(124, b"\0") + b"-0000000001\0".ljust(32, b"\0") + b"0".ljust(356, b"\0"),
    "nothing": b"\0",
}


@pytest.mark.parametrize("content", UNSEALED.values(), ids=UNSEALED)
def test_tar_file_that_nobody_has_sealed_is_not_parsed(content, tmp_path, monkeypatch, run):
    monkeypatch.setattr(tarfile, "open", lambda *_, **__: pytest.fail("no key has sealed it"))
    path = tmp_path / "odd.safecache"
    tracemalloc.start()
    try:
        assert "it does not begin as a pack" in refused(path, forged.compress(content))
        assert tracemalloc.get_traced_memory()[1] < len(content) * 4 + (8 << 20)
    finally:
        tracemalloc.stop()
    merge = ["merge", path, "-o", tmp_path / "merged.safecache"]
    for command in (["unpack", path, tmp_path / "there"], ["preflight", path], ["diff", path, path], merge):
        said = run(*command)
        assert said.code and str(path) in said.err + said.out and "Traceback" not in said.err, said


def frame_that_grows(content, more):
    """One that states to be ``content``, and has so many blocks behind it that stand for 128 KiB each, its window."""
    begin = b"\x28\xb5\x2f\xfd\x80\x38" + len(content).to_bytes(4, "little")
    parts = [content[at : at + (1 << 16)] for at in range(0, len(content), 1 << 16)]
    plain = b"".join((len(part) << 3).to_bytes(3, "little") + part for part in parts)
    repeated, last = ((1 << 17 << 3 | 1 << 1 | end).to_bytes(3, "little") + b"x" for end in (0, 1))
    return begin + plain + repeated * more + last


def test_sealed_manifest_in_a_frame_that_grows(pack, tmp_path):
    """Whoever has a pack has its manifest, and may compress it anew."""
    _, *rest = forged.frames(pack.read_bytes())
    stated = forged.statement(pack.read_bytes())
    stated["predicate"]["said"] = "x" * (2 << 20)
    content = forged.zstandard.ZstdDecompressor().decompress(forged.manifest(stated))
    bomb = b"".join([frame_that_grows(content, 8192), *rest])
    assert len(bomb) < 3 << 20
    tracemalloc.start()
    try:
        assert "longer than it states" in refused(tmp_path / "bomb.safecache", bomb)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def library(root="inductor", key="ab/cabc.so"):
    return "native_code", key, root, forged.tar((f"{root}/{key}", b"code")), {os.path.basename(key): b"code"}


OUTSIDE = [
    library(key="../../outside.so"),
    library(key="ab/../../outside.so"),
    library(key="/tmp/outside.so"),
    library(root="../inductor"),
    library(root="inductor/../.."),
    library(root="vllm/../.."),
    library(root="vllm/.hidden"),
    library(root="/"),
    library(root=""),
    ("fx_graph", "f" + "a" * 51 + "/../../..", "inductor", b"", {}),
    ("fx_graph", "../" * 17 + "f", "inductor", b"", {}),
    ("kernel", "..", "triton", b"", {}),
    ("pgo_state", "job\x00id", "inductor", b"", {}),
    ("header", "ab/cabc.h", "inductor", b"", {}),
    ("parcel", "ab", "inductor", b"", {}),
]


@pytest.mark.parametrize("group", OUTSIDE, ids=lambda group: f"{group[0]} {group[1]} {group[2]}"[:40])
def test_group_that_lies_outside_though_a_trusted_key_says_so(group, tmp_path):
    refused(tmp_path / "out.safecache", forged.with_groups([group]))


GOOD = "fx_graph", filled.GRAPH, "inductor"
WHERE = f"inductor/fxgraph/{filled.GRAPH[1:3]}/{filled.GRAPH}"


def link(name, target):
    about = tarfile.TarInfo(name)
    about.type, about.linkname = tarfile.SYMTYPE, target
    return about


@pytest.mark.parametrize(
    ("content", "files"),
    [
        (forged.tar((f"{WHERE}/../../../../out", b"x")), {"../../../../out": b"x"}),
        (forged.tar((f"{WHERE}/a", b"x"), (f"{WHERE}/a", b"x")), {"a": b"x"}),
        (forged.tar((f"{WHERE}/a", b"x"), ("inductor/other", b"x")), {"a": b"x"}),
        (forged.tar((link(f"{WHERE}/a", "/etc/passwd"), b"")), {"a": b""}),
        (forged.tar((f"{WHERE}/.hidden", b"x")), {".hidden": b"x"}),
        (forged.tar((f"{WHERE}/a", b"x")), {"a": b"y"}),
        (forged.tar((f"{WHERE}/a", b"x")), {"a": b"x", "b": b"x"}),
        (forged.tar((f"/{WHERE}/a", b"x")), {"a": b"x"}),
        (b"no tar file" * 100, {"a": b"x"}),
        (b"", {"a": b"x"}),
    ],
)
def test_members_that_the_manifest_does_not_mean(content, files, tmp_path):
    refused(tmp_path / "odd.safecache", forged.with_groups([(*GOOD, content, files)]))


def test_group_that_grows_beyond_what_a_trusted_key_states(tmp_path):
    content = forged.with_groups([(*GOOD, forged.tar((f"{WHERE}/a", b"\0" * (1 << 20))), {"a": b"\0" * (1 << 20)})])
    stated = forged.statement(content)
    stated["predicate"]["groups"][0][5] = 4096
    _, *rest = forged.frames(content)
    refused(tmp_path / "bomb.safecache", b"".join([forged.manifest(stated), *rest]))


@pytest.mark.parametrize(
    "change",
    [
        {"predicateType": "urn:safecache:pack:2"},
        {"predicate": []},
        {"predicate": {"groups": [], "body": "x"}},
        {"predicate": {"groups": [["fx_graph"]], "body": 1}},
        {"predicate": {"groups": 1, "body": 1}},
        {"predicate": {"groups": [[*GOOD, -1, 1, 1, "", []]], "body": 1}},
        {"predicate": {"body": 1}},
    ],
)
def test_statement_of_another_safecache(change, pack, tmp_path):
    _, *rest = forged.frames(pack.read_bytes())
    stated = forged.statement(pack.read_bytes()) | change
    (tmp_path / "new.safecache").write_bytes(b"".join([forged.manifest(stated), *rest]))
    with pytest.raises(PackRefusedError, match="manifest cannot be read"):
        archive.open_pack(str(tmp_path / "new.safecache"))


def test_what_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe.safecache")
    (tmp_path / "directory.safecache").mkdir()
    for name in ("pipe", "directory"):
        with pytest.raises((PackRefusedError, OSError)):
            archive.open_pack(str(tmp_path / f"{name}.safecache"))


@pytest.fixture
def swapped(tmp_path):
    """A signer's pack in which an entry lies under another graph's key: its own seal says so."""
    theirs = filled.entry(tmp_path / "other", Kind.FX_ENTRY, "f" + "b" * 51, b"another graph")
    content = theirs.read_bytes()
    members = forged.tar((f"{WHERE}/{theirs.name}", content))
    path = tmp_path / "swapped.safecache"
    path.write_bytes(forged.with_groups([(*GOOD, members, {theirs.name: content})], made_with={}))
    return path


def test_entry_for_another_key_is_not_unpacked_though_the_pack_is_ours(swapped, tmp_path, run):
    said = run("unpack", swapped, tmp_path / "there")
    assert said.code == 1 and "refused" in said.out and not below(tmp_path / "there")


def test_nor_is_it_packed_again(swapped, tmp_path, run):
    said = run("merge", swapped, "-o", tmp_path / "merged.safecache")
    assert said.code == 1 and "sealed for another cache key" in said.out
    assert archive.open_pack(str(tmp_path / "merged.safecache")).groups == ()


def test_nor_taken_by_a_lookup(swapped, tmp_path, settings, caplog):
    settings(SAFECACHE_LOWER=swapped)
    there = tmp_path / "there"
    bundle = Ref(Kind.FX_ENTRY, filled.GRAPH, str(there))
    assert not bundles.fetch(bundle) and not below(there)
    assert any(str(swapped) in record.message for record in caplog.records)


def test_links_in_the_target_lead_nowhere(pack, run, tmp_path):
    there, outside = tmp_path / "there", tmp_path / "outside"
    outside.mkdir()
    there.mkdir()
    for name in ("aotautograd", "fxgraph", "triton", "dynamo", ".safecache"):
        (there / name).symlink_to(outside)
    run("unpack", pack, there)
    assert below(outside) == set()


def test_what_is_unpacked_by_tar_is_verified_by_who_reads_it(pack, tmp_path):
    with tarfile.open(
        fileobj=forged.io.BytesIO(
            b"".join(map(forged.zstandard.ZstdDecompressor().decompress, forged.frames(pack.read_bytes())))
        )
    ) as found:
        found.extractall(tmp_path / "by tar", filter="data")
    bundle = Ref(Kind.FX_ENTRY, filled.GRAPH, str(tmp_path / "by tar" / "inductor"))
    assert bundles.read_verified_files(bundle)
    (path,) = (tmp_path / "by tar" / WHERE).iterdir()
    path.write_bytes(flipped(path.read_bytes(), 80))
    assert bundles.read_verified_files(bundle) == ()
