"""What may come out of a store that an attacker owns: nothing of it is decompressed, let alone used, unless it is ours."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from types import SimpleNamespace

import pytest
from helpers.caches import key
from helpers.sealed import flipped

from safecache.fs import ownership
from safecache.places import layout
from safecache.places.layout import CodeFile
from safecache.places.refs import Ref
from safecache.ports import File
from safecache.remote import parcels
from safecache.remote.parcels import Parcel
from safecache.reporting.kinds import Kind, Reason
from safecache.signing import keyring, provenance, seal
from safecache.signing.keys import Key
from safecache.store import bundles, gate, manifests, wire

zstandard = pytest.importorskip("zstandard")

KEY, OTHER = key("f", "one"), key("f", "other")
MOST = 1 << 20


def sealed_entry(payload=b"payload", kind=Kind.FX_ENTRY, key=KEY, signing=None):
    signing = signing or keyring.current().signing
    return seal.attach(payload, kind, key, signing, provenance.make_statement(kind))


def entry_bundle(tmp_path, kind=Kind.FX_ENTRY, key=KEY):
    root = str(tmp_path / "cache")
    return Ref(kind, key, root)


def entry_file(content):
    return File(layout.name_entry(content), content, None)


def kernel_bundle(tmp_path):
    root = str(tmp_path / "triton")
    return Ref(Kind.KERNEL, "K" * 52, root)


def kernels(tmp_path):
    """A kernel in Triton's cache, as safecache writes it."""
    from safecache.built_code import triton_files

    bundle = kernel_bundle(tmp_path)
    paths = {}
    for name, content in (("kernel.cubin", b"cubin" * 100), ("kernel.json", b"{}")):
        paths[name] = triton_files.put(bundle.directory, name, content)
    triton_files.put(bundle.directory, "__grp__kernel.json", json.dumps({"child_paths": paths}).encode())
    return bundle


def packed(files, bundle, needs=()):
    parcel = Parcel(wire.place_in_frame(bundle), tuple(files), needs)
    return parcels.encode_object(parcel, parcels.name_object(bundle.kind, bundle.key))


def opened(content, bundle, most=MOST):
    return parcels.decode_object(content, parcels.name_object(bundle.kind, bundle.key), bundle, most)


def test_what_is_packed_comes_out_and_is_always_the_same(tmp_path):
    bundle = entry_bundle(tmp_path)
    files = [entry_file(sealed_entry(b"one")), entry_file(sealed_entry(b"two" * 1000))]
    needs = ((Kind.KERNEL, "K" * 52), (Kind.NATIVE_CODE, "ab/cabc.so"))
    content = packed(files, bundle, needs)
    assert opened(content, bundle) == Parcel(wire.place_in_frame(bundle), tuple(sorted(files)), needs)
    assert packed(files, bundle, needs) == content


def test_kernel_travels_with_its_records(tmp_path):
    bundle = kernels(tmp_path)
    files = bundles.read_verified_files(bundle)
    assert [file.name for file in files] == ["kernel.cubin", "kernel.json", "__grp__kernel.json"]
    found = opened(packed(files, bundle), bundle)
    assert found.files == files and files[-1].record is not None


def test_any_flipped_bit_is_refused(tmp_path):
    bundle = entry_bundle(tmp_path)
    content = packed([entry_file(sealed_entry())], bundle)
    for bit in range(0, 8 * len(content), 7):
        assert not isinstance(opened(flipped(content, bit), bundle), Parcel), bit
    for size in range(0, len(content), 5):
        assert not isinstance(opened(content[:size], bundle), Parcel), size


def test_parcel_of_another_name_kind_or_namespace_is_refused(tmp_path, settings):
    bundle = entry_bundle(tmp_path)
    content = packed([entry_file(sealed_entry())], bundle)
    assert opened(content, entry_bundle(tmp_path, key=OTHER)).reason is Reason.OTHER_CACHE_KEY
    other = entry_bundle(tmp_path, kind=Kind.AOT_ENTRY)
    assert opened(content, other).reason is Reason.OTHER_CACHE_KEY
    settings(SAFECACHE_NAMESPACE="elsewhere")
    assert opened(content, bundle).reason is Reason.OTHER_NAMESPACE


def test_parcel_of_a_stranger_is_refused_unread(tmp_path, monkeypatch):
    bundle = entry_bundle(tmp_path)
    name, stranger = parcels.name_object(bundle.kind, bundle.key), Key.derive(b"s" * 32)
    payload = seal.strip_unverified(packed([entry_file(sealed_entry())], bundle))
    content = seal.attach(payload, Kind.PARCEL, name, stranger, {})
    monkeypatch.setattr(wire, "decompress", lambda *_: pytest.fail("it was unpacked"))
    assert opened(content, bundle).reason is Reason.UNKNOWN_KEY
    assert opened(payload, bundle).reason is Reason.UNSEALED


def by_a_trusted_fool(bundle, header, body):
    """A parcel that a key which we trust has sealed, whatever it says."""
    written = json.dumps(header).encode() if not isinstance(header, bytes) else header
    payload = struct.pack("<I", len(written)) + written + body
    name = parcels.name_object(bundle.kind, bundle.key)
    return seal.attach(payload, Kind.PARCEL, name, keyring.current().signing, {})


def bomb(size=50 << 20):
    return zstandard.ZstdCompressor().compress(bytes(size))


def frame(*names, content=b"12345"):
    return zstandard.ZstdCompressor().compress(b"".join(wire.tar_member(name, content) for name in names))


HERE = f"inductor/{Ref(Kind.FX_ENTRY, KEY).path}"


FILES = [["a", 5, hashlib.sha256(b"12345").hexdigest()]]


def row(body, size=1024, named=FILES, **changes):
    """The row of this body, of a file of five bytes if nothing is changed."""
    stated = {"kind": "fx_graph", "key": KEY, "root": "inductor", "at": 0, "stored": len(body), "size": size}
    digest = hashlib.sha256(body).hexdigest()
    return {"row": [*(stated | {"digest": digest, "files": named} | changes).values()], "needs": []}


GOOD = frame(f"{HERE}/a")


def test_row_and_frame_of_the_next_test_are_taken_but_for_what_is_changed():
    packed = wire.read_row(*row(GOOD)["row"])
    assert wire.decompress(GOOD, packed) == (File("a", b"12345", None),)


@pytest.mark.parametrize(
    ("header", "body"),
    [
        (b"", b""),
        (b"null", b""),
        (b"[" * 100_000, b""),
        (row(bomb(), 50 << 20), bomb()),
        (row(bomb(), 100), bomb()),
        (row(GOOD, -1), GOOD),
        (row(GOOD, stored=-1), GOOD),
        (row(GOOD, size="5"), GOOD),
        (row(GOOD, digest="ab" * 32), GOOD),
        (row(GOOD, kind="no kind"), GOOD),
        (row(GOOD, key="../../etc"), GOOD),
        (row(GOOD, root="/etc"), GOOD),
        (row(GOOD, named=[["b", 5, "ab" * 32]]), GOOD),
        (row(GOOD, named=5), GOOD),
        (row(GOOD) | {"needs": 5}, GOOD),
        ({"needs": []}, GOOD),
        (row(b"no frame"), b"no frame"),
        (row(frame("etc/passwd")), frame("etc/passwd")),
        (row(frame(f"{HERE}/a", f"{HERE}/b"), 2048), frame(f"{HERE}/a", f"{HERE}/b")),
        (row(frame(f"{HERE}/a", f"{HERE}/a"), 2048), frame(f"{HERE}/a", f"{HERE}/a")),
        (row(nameless := zstandard.ZstdCompressor(write_content_size=False).compress(b"x" * 999), 999), nameless),
    ],
)
def test_what_a_fool_has_sealed_is_refused_and_never_raises(tmp_path, header, body):
    bundle = entry_bundle(tmp_path)
    found = opened(by_a_trusted_fool(bundle, header, body), bundle)
    assert not isinstance(found, Parcel) and found.reason is Reason.UNKNOWN_FORMAT, found


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "/etc/passwd", "", ".", "..", ".hidden", "a/b", "a\0b", "tmp.pid_1_x"]
)
def test_names_that_lead_elsewhere_are_refused(tmp_path, name):
    content = sealed_entry()
    for bundle, file in (
        (entry_bundle(tmp_path), File(name, content, None)),
        (kernel_bundle(tmp_path), File(name, b"cubin", b"record")),
        (
            Ref(Kind.NATIVE_CODE, "ab/c.so", str(tmp_path)),
            File(name, b"so", b"record"),
        ),
    ):
        assert not isinstance(opened(packed([file], bundle), bundle), Parcel)


def test_file_of_another_key_is_refused_though_it_verifies(tmp_path):
    other = CodeFile(str(tmp_path / "ab" / "other.so"), str(tmp_path))
    gate.attest_file(other, b"code")
    file = File("other.so", b"code", manifests.read_unverified_record(other))
    assert bundles.judge_bundle([file], Ref(Kind.NATIVE_CODE, "ab/other.so", str(tmp_path))) is None
    assert bundles.judge_bundle([file], Ref(Kind.NATIVE_CODE, "ab/c.so", str(tmp_path))).reason is Reason.UNSAFE_NAME


def test_private_cache_vouches_for_nothing_that_comes_from_elsewhere(tmp_path, settings):
    settings(SAFECACHE_TRUST="private")
    for bundle in (Ref(Kind.NATIVE_CODE, "ab/c.so", str(tmp_path)), entry_bundle(tmp_path)):
        file = File("c.so" if bundle.is_file else layout.name_entry(b"code"), b"code", None)
        assert (
            bundles.publish([file], bundle, "a test")
            and ownership.find_exposure(bundle.name_file(file.name).path) is None
        )
        assert bundles.judge_bundle([file], bundle).reason is Reason.UNSEALED


def test_each_file_is_verified_by_itself(tmp_path):
    """A key that may seal parcels, and is trusted for nothing else of theirs."""
    bundle, stranger = entry_bundle(tmp_path), Key.derive(b"s" * 32)
    assert opened(packed([entry_file(sealed_entry(signing=stranger))], bundle), bundle).reason is Reason.UNKNOWN_KEY
    assert opened(packed([entry_file(sealed_entry(key=OTHER))], bundle), bundle).reason is Reason.OTHER_CACHE_KEY
    content = sealed_entry()
    misnamed = File("a" * 51, content, None)
    assert opened(packed([misnamed], bundle), bundle).reason is Reason.DAMAGED
    with_record = entry_file(content)._replace(record=b"{}")
    assert opened(packed([with_record], bundle), bundle).reason is Reason.UNSAFE_NAME


def test_kernel_whose_file_or_record_was_exchanged_is_refused(tmp_path):
    bundle = kernels(tmp_path)
    cubin, metadata, listing = bundles.read_verified_files(bundle)
    for files in (
        [cubin._replace(content=b"other"), metadata, listing],
        [cubin._replace(record=None, content=b"other"), metadata, listing],
        [cubin, metadata._replace(record=cubin.record), listing],
        [cubin, metadata, listing._replace(content=b"{}")],
        [cubin, metadata._replace(record=None), listing._replace(record=None)],
    ):
        assert not isinstance(opened(packed(files, bundle), bundle), Parcel), files
    # A file that only the list's record is of: as good as one with a record of its own.
    assert isinstance(opened(packed([cubin._replace(record=None), metadata, listing], bundle), bundle), Parcel)


def test_only_what_verifies_is_collected(tmp_path):
    bundle = kernels(tmp_path)
    with open(bundle.name_file("planted.so").path, "wb") as file:
        file.write(b"nobody has sealed this")
    whole = ["kernel.cubin", "kernel.json", "__grp__kernel.json"]
    assert [file.name for file in bundles.read_verified_files(bundle)] == whole
    with open(bundle.name_file("kernel.cubin").path, "ab") as file:
        file.write(b"more")
    # A part of it would be of no use to anybody, and in the way of the whole.
    assert bundles.read_verified_files(bundle) == ()


def test_autotuning_result_is_compared_in_one_spelling(tmp_path):
    root = str(tmp_path)
    path = os.path.join(root, "ab", "cabc.best_config")
    result = {"b": 1, "a": [2, 3]}
    os.makedirs(os.path.dirname(path))
    gate.attest_file(CodeFile(path, root, Kind.AUTOTUNING), json.dumps(result, sort_keys=True).encode())
    with open(path, "w") as file:
        json.dump(result, file, indent=3)
    bundle = Ref(Kind.AUTOTUNING, "ab/cabc.best_config", root)
    (file,) = bundles.read_verified_files(bundle)
    assert isinstance(opened(packed([file], bundle), bundle), Parcel)
    changed = file._replace(content=json.dumps(result | {"b": 2}).encode())
    assert opened(packed([changed], bundle), bundle).reason is Reason.DAMAGED


def test_name_tells_builds_and_strange_keys_apart(monkeypatch):
    name = parcels.name_object(Kind.FX_ENTRY, KEY)
    assert name.startswith(f"fx_graph/{KEY}@") and parcels.is_of_this_build(name, Kind.FX_ENTRY)
    for strange in ("../up", "/root", "a//b", "a@b", "x" * 300, "", "a\nb", "ü"):
        hashed = parcels.name_object(Kind.PGO_STATE, strange)
        assert hashlib.sha256(strange.encode()).hexdigest() in hashed and parcels.parse_kind(hashed) is Kind.PGO_STATE
    here = provenance.describe()
    monkeypatch.setattr(provenance, "describe", lambda: here | {"torch": "2.10.0"})
    assert parcels.name_object(Kind.FX_ENTRY, KEY) != name and not parcels.is_of_this_build(name, Kind.FX_ENTRY)


def test_kernel_that_lacks_a_file_of_its_list_is_refused(tmp_path):
    bundle = kernels(tmp_path)
    cubin, metadata, listing = bundles.read_verified_files(bundle)
    refused = opened(packed([metadata, listing], bundle), bundle)
    assert refused.reason is Reason.DAMAGED and cubin.name in refused.evidence


def test_need_of_a_kind_that_is_not_known_yet_is_passed_over(tmp_path):
    bundle, later = entry_bundle(tmp_path), SimpleNamespace(value="of a later release")
    content = packed([entry_file(sealed_entry())], bundle, ((later, "key"), (Kind.KERNEL, "K" * 52)))
    assert opened(content, bundle).needs == ((Kind.KERNEL, "K" * 52),)
