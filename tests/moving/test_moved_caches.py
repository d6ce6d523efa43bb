"""A cache that was made under one path, user and home is found under others, and nothing is compiled; what is not."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil

import pytest

from moving.places import SOURCE, Place, other_users_can_be

pytestmark = pytest.mark.xdist_group("moving")

SCENES = (
    "inference",
    "training",
    "custom_op",
    "dynamic",
    "profile",
    "cpp_wrapper",
    "precompiled",
    "ahead_of_time",
    "kernel",
)
# What a process has counted where everything was found; those of code are as many as there are libraries.
FOUND = {
    "inference": {"aot hit": 1, "fx hit": 1},
    "training": {"aot hit": 1, "fx hit": 2},
    "custom_op": {"aot hit": 1, "fx hit": 2},
    "dynamic": {"aot hit": 1, "fx hit": 1},
    "profile": {"aot hit": 1, "fx hit": 1},
    "cpp_wrapper": {"aot hit": 1, "fx hit": 1},
    "precompiled": {},
    "ahead_of_time": {"model hit": 1},
    "kernel": {"triton hit": 1},
}


@pytest.fixture(scope="module")
def first(session_directory):
    """Where the cache was made, whose files lie in ``kept`` since."""
    place = Place(session_directory / "first")
    for name, outcome in place.run(*SCENES).items():
        assert "error" not in outcome, (name, outcome)
    assert place.compiled
    place.base.rename(session_directory / "kept")
    return place


@pytest.fixture(scope="module")
def kept(first):
    return first.base.with_name("kept") / "cache"


@pytest.fixture
def moved(kept, session_directory):
    """Makes a place with a copy of the cache, none of whose first paths is there any more."""
    made = []

    def make(user=0):
        place = Place(session_directory / "elsewhere", user)
        made.append(place)
        shutil.copytree(kept, place.cache, dirs_exist_ok=True)
        if user:
            place.own()
        return place

    yield make
    for place in made:
        shutil.rmtree(place.base)


def lookups(outcome):
    return {name: n for name, n in outcome["stats"].items() if name.endswith(" hit") or " miss" in name}


@pytest.mark.parametrize(
    "user",
    [
        0,
        pytest.param(4711, marks=pytest.mark.skipif(not other_users_can_be(), reason="needs root, and setpriv")),
    ],
)
def test_all_is_found_under_other_paths_and_nothing_compiled(moved, user):
    """Another user, home, TMPDIR, cache and project: each lookup hits, and the compiler is asked for its version alone."""
    place = moved(user)
    libraries = {path: path.read_bytes() for path in place.cache.rglob("*.so")}
    found = place.run(*SCENES, SAFECACHE_MUST_HIT="1")
    for name, outcome in found.items():
        assert "error" not in outcome, (name, outcome)
        assert lookups(outcome) == FOUND[name], (name, outcome)
    assert place.compiled == []
    assert found["profile"]["result"] == 1 and found["precompiled"]["result"] == 0, found
    assert {path: path.read_bytes() for path in place.cache.rglob("*.so")} == libraries
    assert not list((place.base / "tmp").rglob("*.gch"))


@pytest.mark.default_release
def test_header_is_precompiled_where_a_library_is_to_be_built(moved):
    """Only then, since it takes longer than all else of a warm start, and lies outside of the cache."""
    place = moved()
    for library in place.cache.glob("*/*.main.so"):
        library.unlink()
    outcome = place.run("inference")["inference"]
    assert lookups(outcome) == FOUND["inference"], outcome
    assert list((place.base / "tmp").rglob("*.gch")), place.compiled


def test_libraries_are_built_again_where_torch_lies_elsewhere(moved):
    """The paths of torch's headers are in the compiler's command line, and that is in the name of each library."""
    place = moved()
    site = place.base / "site"
    site.mkdir()
    (site / "torch").symlink_to(os.path.dirname(importlib.util.find_spec("torch").origin))
    before = set(place.cache.glob("*/*.main.so"))
    found = place.run("inference", "kernel", PYTHONPATH=os.pathsep.join([str(site), str(SOURCE)]))
    assert lookups(found["inference"]) == FOUND["inference"], found
    assert lookups(found["kernel"]) == FOUND["kernel"], found
    after = set(place.cache.glob("*/*.main.so"))
    assert before < after and place.compiled


def test_keys_for_amd_move_with_triton_from_3_9_on(session_directory):
    """Earlier ones name the files of Triton's libraries for AMD; those for NVIDIA have always had a digest of theirs."""
    place = Place(session_directory / "amd")
    site = place.base / "site"
    site.mkdir()
    (site / "triton").symlink_to(os.path.dirname(importlib.util.find_spec("triton").origin))
    here = place.run("amd_options")["amd_options"]
    there = place.run("amd_options", PYTHONPATH=os.pathsep.join([str(site), str(SOURCE)]))["amd_options"]
    assert "error" not in here | there, (here, there)
    moves = tuple(map(int, importlib.metadata.version("triton").split(".")[:2])) >= (3, 9)
    assert (here["result"] == there["result"]) is moves


def test_path_of_the_compiler_is_in_each_key_of_torch(moved):
    place = moved()
    found = place.run("inference", "kernel", CXX=str(place.compiler))
    assert found["inference"]["stats"].get("aot miss: key differs") == 1, found
    assert lookups(found["kernel"]) == FOUND["kernel"], found


def test_paths_in_variables_of_triton_are_in_its_keys(moved):
    place = moved()
    found = place.run("inference", "kernel", MLIR_DUMP_PATH=str(place.base / "dump"))
    assert lookups(found["inference"]) == FOUND["inference"], found
    assert found["kernel"]["stats"].get("triton miss: key differs") == 1, found


def test_payloads_still_tell_where_they_were_made(first, kept):
    """Nothing reads those paths; but who gives a cache away shows them."""
    # So do libraries, but here harness/caching_compiler.py may have made one for another test.
    told = {"aotautograd/*/*": first.project, "triton/0/*/*.ptx": first.project}
    for pattern, path in told.items():
        assert any(os.fsencode(path) in file.read_bytes() for file in kept.glob(pattern)), pattern
    records = [path for path in kept.rglob("*") if path.is_file() and path.parts[-4:-2] == (".safecache", "records")]
    assert records and not any(os.fsencode(first.base) in path.read_bytes() for path in records)


@pytest.mark.default_release
def test_extension_moves_with_its_directory_alone(session_directory):
    """Ninja compares command lines, and those have the paths of its sources: the same directory, in another home."""
    place, other = (Place(session_directory / name) for name in ("builder", "user"))
    extensions = {"TORCH_EXTENSIONS_DIR": str(session_directory / "extensions")}
    assert "error" not in place.run("extension", **extensions)["extension"]
    assert place.compiled
    assert "error" not in other.run("extension", **extensions)["extension"]
    assert other.compiled == []
    shutil.copytree(session_directory / "extensions", other.base / "extensions")
    assert "error" not in other.run("extension", TORCH_EXTENSIONS_DIR=str(other.base / "extensions"))["extension"]
    assert other.compiled
