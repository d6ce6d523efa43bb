"""One copy between caches, packs and a remote: whichever has it, and whichever lacks it."""

from __future__ import annotations

import itertools
import shutil
from contextlib import suppress

import pytest
from helpers import filled
from helpers.caches import key
from helpers.sealed import flipped

from safecache.errors import PackRefusedError
from safecache.remote import client
from safecache.reporting.kinds import Kind
from safecache.signing import keyring, provenance, seal
from safecache.testing import failing
from safecache.upkeep import copies, packing
from safecache.upkeep.copies import Caches, Directory, Fate, Remote

pytest.importorskip("zstandard")
PLACES = ("directory", "pack", "remote")


@pytest.fixture
def places(tmp_path, settings, isolated):
    """By its name, how bundles are copied to a place below a directory, and what they are copied from then."""

    def told(*_):
        return None

    def to_directory(sources, there):
        (there / "cache").mkdir(parents=True)
        copied = copies.copy(sources, Caches(str(there / "cache"), str(there / "triton"), str(there / "vllm")), told)
        return copied, Directory(str(there / "cache"))

    def to_pack(sources, there):
        there.mkdir()
        path = str(there / "model.safecache")
        with open(there / "spool", "w+b") as spool:
            made = packing._NewPack(spool)
            copied = copies.copy(sources, made, told, threads=1)
            with open(path, "wb") as file:
                file.writelines(made.make_parts({}))
        return copied, packing._Pack(path)

    def to_remote(sources, there):
        there.mkdir()
        remote = Remote(client.get_background(f"file://{there}"))
        return copies.copy(sources, remote, told), remote

    return {"directory": to_directory, "pack": to_pack, "remote": to_remote}


@pytest.fixture
def cache(tmp_path, isolated):
    return filled.fill(tmp_path / "cache")


def done(copied, number=filled.BUNDLES):
    return copied.counts == {Fate.DONE: number} and not copied.problems


@pytest.mark.parametrize(("one", "other"), [*itertools.product(PLACES, PLACES)])
def test_whatever_is_copied_arrives_as_it_was(places, cache, tmp_path, one, other):
    copied, first = places[one]([Directory(str(cache))], tmp_path / "first")
    assert done(copied)
    copied, second = places[other]([first], tmp_path / "second")
    assert done(copied)
    copied, _ = places["directory"]([second], tmp_path / "third")
    assert done(copied) and filled.contents(tmp_path / "third" / "cache") == filled.contents(cache)


def readable(place, listings):
    """What of these it gives, by key and name of a file."""
    found = {}
    for listing in listings:
        with suppress(PackRefusedError):
            bundle = place.read(listing)
            files = () if bundle.refusal is not None else bundle.files
            found |= {(bundle.ref, file.name): file.content for file in files}
    return found


@pytest.mark.parametrize("place", PLACES)
def test_what_is_altered_once_it_was_listed_is_not_read(places, cache, tmp_path, place):
    """Each file by itself, at its beginning, in the middle and at its end."""
    _, source = places[place]([Directory(str(cache))], tmp_path / "first")
    listings = list(source.list_bundles())
    given, fewer = readable(source, listings), 0
    assert len({ref for ref, _ in given}) == filled.BUNDLES
    for path in sorted(path for path in (tmp_path / "first").rglob("*") if path.is_file()):
        content = path.read_bytes()
        for bit in (0, len(content) * 4, len(content) * 8 - 1):
            path.write_bytes(flipped(content, bit))
            found = readable(source, listings)
            assert found.items() <= given.items(), path
            fewer += found != given
        path.write_bytes(content)
    assert fewer and readable(source, listings) == given


def test_what_is_damaged_in_one_source_is_taken_from_the_next(places, cache, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(cache, other)
    for path in cache.rglob("*"):
        if path.is_file() and ".safecache" not in path.parts:
            path.write_bytes(flipped(path.read_bytes(), 8))
    for place in PLACES:
        sources = [Directory(str(cache)), Directory(str(other))]
        assert done(places[place](sources, tmp_path / place)[0]), place


def test_entries_of_one_key_are_joined_from_all_sources(places, cache, tmp_path):
    other = filled.entry(tmp_path / "other", Kind.FX_ENTRY, filled.GRAPH, b"with other guards")
    for place in PLACES:
        _, there = places[place]([Directory(str(cache)), Directory(str(tmp_path / "other"))], tmp_path / place)
        (found,) = [listing for listing in there.list_bundles() if listing.ref.key == filled.GRAPH]
        assert len(found.names) == 2 and other.name in found.names, place


def test_a_copy_that_was_cut_short_goes_on(places, cache, tmp_path):
    for place in ("pack", "remote"):
        _, source = places[place]([Directory(str(cache))], tmp_path / place)
        there = tmp_path / f"from {place}"
        caches = Caches(str(there), str(there / "own"), str(there / "vllm"))
        with failing("rename", "ENOSPC", below=there / "triton"):
            copied = copies.copy([source], caches, lambda *_: None)
        assert copied.counts[Fate.FAILED] == 1 and copied.problems
        copied = copies.copy([source], caches, lambda *_: None)
        assert copied.counts == {Fate.DONE: 1, Fate.THERE: filled.BUNDLES - 1}


def test_what_vllm_keeps_is_sent_as_its_lookups_ask_for_it(places, tmp_path):
    """Its models by their place in its cache, what lies in its caches as that of any other."""
    nested = "torch_aot_compile/" + "0" * 64 + "/rank_0_0"
    top = tmp_path / "vllm" / "torch_compile_cache"
    stated = provenance.make_statement(Kind.AOT_FUNCTION)
    model = seal.attach(b"a model", Kind.AOT_FUNCTION, "", keyring.current().signing, stated)
    filled.write(top / nested / "model", model)
    filled.fill(top / nested / "inductor_cache")
    own = filled.kernel(top / nested / "triton_cache", key("k", "own").upper())
    copied, remote = places["remote"]([Directory(str(tmp_path / "vllm"))], tmp_path / "remote")
    assert done(copied, filled.BUNDLES + 2)
    copied, _ = places["directory"]([remote], tmp_path / "third")
    cache = tmp_path / "third" / "cache"
    assert done(copied, filled.BUNDLES + 1), "a model is of use to vLLM alone"
    assert filled.contents(cache) == filled.contents(top / nested / "inductor_cache")
    assert (tmp_path / "third" / "triton" / own.name / "k.cubin").exists()


def test_what_two_caches_have_is_sent_once(places, tmp_path):
    top = tmp_path / "vllm" / "torch_compile_cache"
    for rank in range(2):
        filled.fill(top / "torch_aot_compile" / ("0" * 64) / f"rank_{rank}_0" / "inductor_cache")
    source = Directory(str(tmp_path / "vllm"))
    _, remote = places["remote"]([source], tmp_path / "remote")
    assert len(list(remote.list_bundles())) == filled.BUNDLES
    assert copies.copy([source], remote, lambda *_: None).counts == {Fate.THERE: 2 * filled.BUNDLES}


def test_what_a_remote_says_of_another_place_is_not_believed(places, cache, tmp_path):
    """A kernel for a device, listed as one of Triton's own: it goes where its sealed row says."""
    _, remote = places["remote"]([Directory(str(cache))], tmp_path / "remote")
    listings = [listing._replace(ref=listing.ref._replace(root="triton")) for listing in remote.list_bundles()]
    for listing in listings:
        bundle = remote.read(listing)
        assert bundle.refusal is None and bundle.ref.root.startswith("inductor")
