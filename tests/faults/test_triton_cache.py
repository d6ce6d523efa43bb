"""Where files of Triton's cache cannot be written, published or read, the kernel comes back all the same."""

from __future__ import annotations

import shutil

import pytest
from conftest import needs_root
from scenes import kernel_scenes, triton_cache_scenes

from faults.hostile import triton_files as files
from faults.small_disks import FAULTS, fill, mounted, read_only

pytest.importorskip("triton")
pytestmark = pytest.mark.default_release

WHO = pytest.mark.parametrize("who", ["stock", "safecache"])


def temporaries(home):
    found = (home.base / "triton").rglob("*")
    return [path for path in found if path.name.startswith("tmp.") or path.suffix == ".tmp"]


@needs_root
@WHO
@pytest.mark.parametrize("scene", [kernel_scenes.compile_kernel, kernel_scenes.build_module])
@pytest.mark.parametrize("fault", FAULTS)
def test_file_system_that_takes_nothing_costs_one_warning_and_the_cache(home, fault, scene, who):
    options, break_it, mend, says = FAULTS[fault]
    with mounted(home.base / "triton", options) as point:
        break_it(point)
        answer = home.run(scene, stock=who == "stock")
        if who == "stock":
            assert not answer.ok or fault.endswith("some"), answer
            return
        assert answer.ok and answer.result["compiled"] and not temporaries(home), answer
        if fault == "inodes-for-some" and scene == kernel_scenes.build_module and not answer.warnings:
            return  # one file, which fits
        assert len(answer.warnings) <= 1, answer
        if answer.warnings:
            assert says in answer.warnings[0] and "TRITON_CACHE_DIR" in answer.warnings[0], answer
        mend(point)
        again = home.run(scene)
        assert again.ok and not temporaries(home), again
        if not again.warnings:
            assert not home.run(scene).result["compiled"], "it recovers by itself"


@needs_root
def test_full_disk_is_an_error_in_strict_mode(home):
    with mounted(home.base / "triton", "size=1m") as point:
        fill(point)
        answer = home.run(kernel_scenes.compile_kernel, strict=True)
        assert answer.errors[0] == "CacheWriteError" and "No space left" in answer.messages[0], answer


@WHO
@pytest.mark.parametrize("scene", [kernel_scenes.compile_kernel, kernel_scenes.build_module])
@pytest.mark.parametrize("place", ["/proc/nope", "file", "below-a-file"])
def test_directory_that_cannot_be_made_costs_one_warning_and_the_cache(home, place, scene, who):
    (home.base / "triton").write_text("in the way")
    home.environment["TRITON_CACHE_DIR"] = {
        "/proc/nope": "/proc/nope",
        "file": str(home.base / "triton"),
        "below-a-file": str(home.base / "triton" / "cache"),
    }[place]
    answer = home.run(scene, stock=who == "stock")
    assert answer.ok is (who == "safecache"), answer
    if who == "safecache":
        assert answer.result["compiled"] and len(answer.warnings) == 1, answer
        assert "TRITON_CACHE_DIR" in answer.warnings[0]
        assert (home.base / "triton").read_text() == "in the way"


def test_file_in_the_place_of_a_kernel_s_directory_is_moved_away(home):
    assert home.run(kernel_scenes.compile_kernel).ok
    (group,) = files(home, "__grp__*")
    shutil.rmtree(group.parent)
    group.parent.write_text("in the way")
    answer = home.run(kernel_scenes.compile_kernel)
    (warning,) = answer.warnings
    assert answer.ok and answer.result["compiled"] and "was in the place of" in warning, answer
    assert not home.run(kernel_scenes.compile_kernel).result["compiled"]


def test_directory_that_may_not_be_written_costs_one_warning_and_the_cache(home):
    (home.base / "triton").mkdir(mode=0o555)
    answer = home.run(kernel_scenes.compile_kernel, unprivileged=True)
    assert answer.ok and len(answer.warnings) == 1 and "Permission denied" in answer.warnings[0], answer


def test_directory_that_may_not_be_entered_costs_one_warning_and_the_cache(home):
    assert home.run(kernel_scenes.compile_kernel).ok
    (home.base / "triton").chmod(0)
    answer = home.run(kernel_scenes.compile_kernel, unprivileged=True)
    assert answer.ok and answer.result["compiled"] and len(answer.warnings) == 1, answer
    (home.base / "triton").chmod(0o755)
    assert not home.run(kernel_scenes.compile_kernel).result["compiled"]


@pytest.mark.parametrize("pattern", ["*.cubin", "tri*.json", "__grp__*"])
def test_unreadable_file_is_a_miss_and_heals(home, pattern):
    assert home.run(kernel_scenes.compile_kernel).ok
    files(home, pattern)[0].chmod(0)
    answer = home.run(kernel_scenes.compile_kernel, unprivileged=True)
    assert answer.ok and answer.result["compiled"] and len(answer.warnings) == 1, answer
    assert "Permission denied" in answer.warnings[0]
    assert not home.run(kernel_scenes.compile_kernel, unprivileged=True).result["compiled"]


@needs_root
def test_damaged_file_that_cannot_be_moved_away_is_a_miss(home):
    with mounted(home.base / "triton", "size=4m") as point:
        good = home.run(kernel_scenes.compile_kernel).result["cubin"]
        files(home, "*.cubin")[0].write_bytes(b"damaged")
        read_only(point)
        answer = home.run(kernel_scenes.compile_kernel)
        assert answer.ok and answer.result["compiled"] and answer.result["cubin"] == good, answer
        assert sorted("damaged" in text for text in answer.warnings) == [False, True], "and the cache is read-only"


CALLS = {
    "open": ["EIO", "EMFILE", "ENFILE", "EDQUOT", "ENOSPC", "EACCES", "ENOMEM", "ESTALE", "EBUSY", "ENOENT"],
    "mkdir": ["EDQUOT", "ESTALE", "EACCES"],
    "rename": ["EIO", "ESTALE", "EBUSY", "ENOENT", "EDQUOT"],
    "fsync": ["EIO", "EDQUOT", "ESTALE"],
    "lstat": ["EIO", "ESTALE", "EACCES"],
    "scandir": ["EIO", "ESTALE"],
}
# Without these nothing can be read or cleaned up, but all can be written.
DISPENSABLE = ("lstat", "scandir")


@pytest.mark.parametrize(("call", "error"), [(call, error) for call, errors in CALLS.items() for error in errors])
def test_call_that_always_fails_costs_a_warning_and_no_compile(home, call, error):
    answer = home.run(
        triton_cache_scenes.compile_while_failing, call=call, error=error, env={"SAFECACHE_FSYNC": "always"}
    )
    assert answer.ok and answer.result["compiled"] and answer.result["cubin"], answer
    assert len(answer.warnings) == (call not in DISPENSABLE) and not temporaries(home), answer
    again = home.run(kernel_scenes.compile_kernel)
    assert again.ok and not again.warnings, again
    assert not home.run(kernel_scenes.compile_kernel).result["compiled"]


@pytest.mark.parametrize("error", ["ESTALE", "EBUSY", "ENOENT"])
@pytest.mark.parametrize("call", ["open", "rename"])
def test_error_that_passes_costs_nothing(home, call, error):
    answer = home.run(triton_cache_scenes.compile_while_failing, call=call, error=error, times=2)
    assert answer.ok and not answer.warnings, answer
    hit = home.run(triton_cache_scenes.compile_while_failing, call="open", error=error, times=2)
    assert hit.ok and not hit.result["compiled"] and not hit.warnings, hit


@pytest.mark.parametrize("error", ["EIO", "ESTALE", "EACCES"])
def test_file_that_cannot_be_read_is_a_miss(home, error):
    assert home.run(kernel_scenes.compile_kernel).ok
    answer = home.run(triton_cache_scenes.compile_while_failing, call="open", error=error)
    assert answer.ok and answer.result["compiled"], answer


@WHO
def test_clean_up_that_fails_is_no_failed_compile(home, who):
    answer = home.run(triton_cache_scenes.compile_where_clean_up_fails, stock=who == "stock")
    assert answer.ok is (who == "safecache") and not answer.warnings, answer
    if who == "stock":
        assert "Device or resource busy" in answer.messages[0]


@WHO
@pytest.mark.parametrize("when", ["put", "put_group"])
def test_cache_that_is_cleared_during_a_compile_costs_no_compile(home, who, when):
    answer = home.run(triton_cache_scenes.compile_and_clear, when=when, stock=who == "stock")
    assert answer.ok is (who == "safecache"), answer
    if who == "safecache":
        assert answer.result["compiled"] and len(answer.warnings) == 1, answer
        assert "No such file" in answer.warnings[0] and "memory" in answer.warnings[0]
        assert (
            home.run(kernel_scenes.compile_kernel).ok and not home.run(kernel_scenes.compile_kernel).result["compiled"]
        )


def test_file_of_another_writer_makes_the_group_a_miss(home):
    good = home.run(kernel_scenes.compile_kernel).result["cubin"]
    answer = home.run(
        triton_cache_scenes.put_as_another_writer, name=files(home, "*.cubin")[0].name, content=b"other".hex()
    )
    assert answer.ok, answer
    answer = home.run(kernel_scenes.compile_kernel)
    assert answer.ok and answer.result["compiled"] and answer.result["cubin"] == good, answer
    assert not answer.warnings and not home.run(kernel_scenes.compile_kernel).result["compiled"]
