"""A cache that was made under one path, user and home is found under others, and nothing is compiled; what is not."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil

import pytest
from faults.users import other_users_can_be

from moving.places import SOURCE, Place

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
    place.made = place.run(*SCENES, "amd_options")
    for name, outcome in place.made.items():
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


def test_all_is_found_under_other_paths_and_nothing_compiled(moved):
    """Another user, home, TMPDIR, cache and project: each lookup hits, and the compiler is asked for its version alone."""
    place = moved(4711 if other_users_can_be() else 0)
    libraries = {path: path.read_bytes() for path in place.cache.rglob("*.so")}
    found = place.run(*SCENES, SAFECACHE_MUST_HIT="1")
    for name, outcome in found.items():
        assert "error" not in outcome, (name, outcome)
        assert lookups(outcome) == FOUND[name], (name, outcome)
    assert place.compiled == []
    assert found["profile"]["result"] == 1 and found["precompiled"]["result"] == 0, found
    assert {path: path.read_bytes() for path in place.cache.rglob("*.so")} == libraries
    assert not list((place.base / "tmp").rglob("*.gch"))


def test_libraries_alone_are_built_again_where_torch_and_triton_lie_elsewhere(first, moved):
    """The paths of torch's headers are in the compiler's command line, and that is in the name of each library.

    Only then is the header precompiled: it takes longer than all else of a warm start, and lies outside of the cache.
    Before 3.9, Triton's keys for AMD name the files of its libraries; those for NVIDIA have always had a digest of theirs.
    """
    place = moved()
    site = place.base / "site"
    site.mkdir()
    for name in ("torch", "triton"):
        (site / name).symlink_to(os.path.dirname(importlib.util.find_spec(name).origin))
    before = set(place.cache.glob("*/*.main.so"))
    path = os.pathsep.join([str(site), str(SOURCE)])
    found = place.run("inference", "kernel", "amd_options", PYTHONPATH=path)
    assert lookups(found["inference"]) == FOUND["inference"], found
    assert lookups(found["kernel"]) == FOUND["kernel"], found
    after = set(place.cache.glob("*/*.main.so"))
    assert before < after and place.compiled
    assert list((place.base / "tmp").rglob("*.gch")), place.compiled
    moves = tuple(map(int, importlib.metadata.version("triton").split(".")[:2])) >= (3, 9)
    assert (found["amd_options"]["result"] == first.made["amd_options"]["result"]) is moves, found


def test_path_of_the_compiler_is_in_each_key_of_torch_and_paths_in_variables_of_triton_in_its(moved):
    """Neither is in the other's."""
    place = moved()
    scenes = ["inference", "kernel"]
    scenes += [f"{scene} MLIR_DUMP_PATH={place.base / 'dump'}" for scene in scenes]
    inference, kernel, *dumping = place.run(*scenes, CXX=str(place.compiler)).values()
    assert inference["stats"].get("aot miss: key differs") == 1, inference
    assert lookups(kernel) == FOUND["kernel"], kernel
    assert lookups(dumping[0]) == FOUND["inference"], dumping
    assert dumping[1]["stats"].get("triton miss: key differs") == 1, dumping


def test_payloads_still_tell_where_they_were_made(first, kept):
    """Nothing reads those paths; but who gives a cache away shows them."""
    # So do libraries, but here harness/caching_compiler.py may have made one for another test.
    told = {"aotautograd/*/*": first.project, "triton/0/*/*.ptx": first.project}
    for pattern, path in told.items():
        assert any(os.fsencode(path) in file.read_bytes() for file in kept.glob(pattern)), pattern
    records = [path for path in kept.rglob("*") if path.is_file() and path.parts[-4:-2] == (".safecache", "records")]
    assert records and not any(os.fsencode(first.base) in path.read_bytes() for path in records)


@pytest.mark.default_release
def test_extension_moves_to_another_directory(session_directory):
    """Ninja would compare command lines, which have the path of the directory; records have a name in its place."""
    place, other = (Place(session_directory / name) for name in ("builder", "user"))
    extensions, copied = session_directory / "extensions", other.base / "extensions"
    scene = f"extension TORCH_EXTENSIONS_DIR={extensions}"
    assert "error" not in place.run(scene)[scene]
    assert place.compiled
    shutil.copytree(extensions, copied)
    for name, outcome in other.run(scene, f"extension TORCH_EXTENSIONS_DIR={copied}").items():
        assert "error" not in outcome, (name, outcome)
    assert other.compiled == []
