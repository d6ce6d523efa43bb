"""Kernels that come out of an entry, and go into one, whatever becomes of Triton's cache meanwhile."""

from __future__ import annotations

import os
import subprocess

import pytest
from conftest import needs_root
from scenes import kernel_scenes, triton_cache_scenes

from faults.hostile import triton_files as files

pytest.importorskip("triton")


def test_kernel_of_an_entry_is_taken_by_us_and_by_stock(home):
    other = str(home.base / "other")
    answer = home.run(triton_cache_scenes.emit_bundle, directory=other)
    assert answer.ok and not answer.result["compiled"] and not answer.warnings, answer
    for stock in (False, True):
        answer = home.run(kernel_scenes.compile_kernel, env={"TRITON_CACHE_DIR": other}, stock=stock)
        assert answer.ok and not answer.result["compiled"] and not answer.warnings, answer


@needs_root
@pytest.mark.parametrize("who", ["stock", "safecache"])
def test_kernel_of_an_entry_that_finds_no_room_is_compiled(home, who):
    full = home.base / "full"
    full.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k,mode=755", "tmpfs", str(full)], check=True)
    try:
        answer = home.run(triton_cache_scenes.emit_bundle, directory=str(full), stock=who == "stock")
        assert answer.ok is (who == "safecache"), answer
        assert any("tmp" in path.name for path in full.rglob("*")) is (who == "stock")
        if who == "safecache":
            assert answer.result["compiled"] and len(answer.warnings) == 1, answer
            assert "No space left" in answer.warnings[0]
    finally:
        subprocess.run(["umount", str(full)], check=True)


def test_what_others_are_still_writing_is_left_alone_and_out_of_the_entry(home):
    assert home.run(kernel_scenes.compile_kernel).ok
    directory = files(home, "__grp__*")[0].parent
    ours = directory / ".0123456789abcdef.tmp"
    ours.write_bytes(b"half")
    theirs = directory / f"tmp.pid_{os.getpid()}_01234567-89ab-cdef-0123-456789abcdef"
    theirs.mkdir()
    answer = home.run(triton_cache_scenes.bundled_names)
    assert answer.ok and not answer.warnings and ours.exists() and theirs.exists(), answer
    assert answer.result and not {ours.name, theirs.name} & set(answer.result)
