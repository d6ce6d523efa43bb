"""A warm cache with Triton kernels that cannot be written, as in an image, is as good as one that can."""

from __future__ import annotations

import contextlib
import shutil
import subprocess

import pytest
from conftest import needs_root
from scenes import bundle_scenes

from faults import directory_cases
from safecache.testing import damage

pytest.importorskip("triton")
pytestmark = needs_root
# Where Triton keeps its kernels: below Inductor's cache, as by default, or beside it, as a server may set it.
LAYOUT = pytest.mark.parametrize("layout", ["below", "beside"])
HOW = pytest.mark.parametrize("how", ["file system", "modes"])
# How many of the two kernels lie in the entry itself.
BUNDLED = pytest.mark.parametrize("bundled", [0, 1, 2])


def places(home, layout):
    triton = home.base / "triton"
    return {"path": str(home.base / "bundle"), "triton": str(triton) if layout == "beside" else None}


@contextlib.contextmanager
def read_only(*places):
    """The directories are mounted so: root cannot write there either."""
    with contextlib.ExitStack() as stack:
        for place in filter(lambda place: place.exists(), places):
            subprocess.run(["mount", "--bind", place, place], check=True)
            stack.callback(subprocess.run, ["umount", place], check=True)
            subprocess.run(["mount", "-o", "remount,bind,ro", place], check=True)
        yield


@contextlib.contextmanager
def closed(home):
    """Nobody may write there, which binds all but root."""
    triton = home.base / "triton"
    with (
        directory_cases.mode(home, None, recursive=True),
        directory_cases.mode(home, None, lambda _: triton, recursive=True),
    ):
        yield


WAYS = {
    "file system": (lambda home: read_only(home.cache, home.base / "triton"), {}),
    "modes": (closed, {"unprivileged": True}),
}


@pytest.fixture
def warm(home, layout, request):
    """A home with two kernels of a graph and one of none, so many of them in its entry; the scene that meets them."""
    if home.zygote.torch.startswith("2.11."):
        pytest.skip("this torch leaves no kernel out of an entry")
    bundled = request.node.callspec.params.get("bundled", 0)
    made = home.run(bundle_scenes.save_kernels, **places(home, layout), bundled=bundled)
    assert made.ok, made
    home.free = made.result["cubin"]
    return home


def kernels(home):
    """The directories of those of the graph."""
    cubins = [path for path in home.base.rglob("*.cubin") if path.read_bytes().hex() != home.free]
    return [path.parent for path in cubins]


@LAYOUT
@BUNDLED
@HOW
def test_warm_cache_that_cannot_be_written_hits_like_one_that_can(warm, layout, bundled, how):
    writable = warm.run(bundle_scenes.load_kernels, **places(warm, layout))
    assert writable.ok and not writable.warnings and not writable.result["lines"], writable
    broken, options = WAYS[how]
    with broken(warm):
        answer = warm.run(bundle_scenes.load_kernels, **places(warm, layout), **options)
    assert answer.ok and answer.result == writable.result, answer
    assert answer.result["found"] == 2 and answer.result["compiled"] == 0, answer
    assert len(answer.warnings) <= 1 and "unwritable" not in answer.stats, answer
    assert not [name for name in answer.stats if "miss" in name], answer


@LAYOUT
@HOW
@pytest.mark.parametrize("bundled", [2])
def test_kernels_that_only_the_entry_has_are_loaded_where_they_cannot_be_written(warm, layout, bundled, how):
    for directory in kernels(warm):
        shutil.rmtree(directory)
    broken, options = WAYS[how]
    with broken(warm):
        answer = warm.run(bundle_scenes.load_kernels, **places(warm, layout), **options)
    assert answer.ok and answer.result["found"] == 2 and answer.result["compiled"] == 0, answer
    assert answer.result["lines"] == [] and len(answer.warnings) == 1, answer
    assert answer.stats.get("unwritable", 0) == (layout == "beside"), answer


@LAYOUT
@HOW
def test_kernels_that_are_new_are_compiled_and_that_they_cannot_be_kept_is_told_once(warm, layout, how):
    for path in list(warm.base.rglob("*.cubin")):
        shutil.rmtree(path.parent)
    broken, options = WAYS[how]
    with broken(warm):
        answer = warm.run(bundle_scenes.load_kernels, **places(warm, layout), **options)
    assert answer.ok and answer.result["found"] == 0 and answer.result["compiled"] == 3, answer
    assert answer.result["lines"] == [] and len(answer.warnings) == 1, answer
    assert answer.stats.get("unwritable", 0) == (layout == "beside"), answer


@LAYOUT
@pytest.mark.parametrize("how", [None, *WAYS])
def test_damaged_binary_is_one_warning_and_that_kernel_alone_is_compiled(warm, layout, how):
    (damaged,) = kernels(warm)[0].glob("*.cubin")
    damage(damaged, "flipped")
    broken, options = WAYS[how] if how else (contextlib.nullcontext, {})
    with broken(warm):
        answer = warm.run(bundle_scenes.load_kernels, **places(warm, layout), **options)
    assert answer.ok and answer.result["found"] == 1 and answer.result["compiled"] == 1, answer
    assert answer.result["lines"] == [], answer
    (of_damage,) = [line for line in answer.warnings if "[damaged]" in line]
    assert str(damaged) in of_damage and len(answer.warnings) <= 1 + bool(how), answer


@pytest.mark.default_release
@pytest.mark.parametrize("layout", ["below"])
def test_stock_torch_loads_a_damaged_binary(warm, layout):
    (damaged,) = kernels(warm)[0].glob("*.cubin")
    damage(damaged, "flipped")
    answer = warm.run(bundle_scenes.load_kernels, **places(warm, layout), stock=True)
    assert answer.ok and answer.result["found"] == 2 and answer.result["compiled"] == 0, answer
