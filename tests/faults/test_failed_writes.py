"""An entry that cannot be written costs a warning, not the compile, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess

import pytest
from conftest import WARM, Home, isolated_environment, needs_root
from scenes import model_scenes

TORCH = pytest.mark.parametrize("functorch", [{}, {"strict_autograd_cache": True}], ids=["torch-lax", "torch-strict"])


@contextlib.contextmanager
def full_disk(home, **functorch):
    """The cache of ``home``, without its entries, on a file system with no byte left."""
    for folder in ("aotautograd", "fxgraph"):
        shutil.rmtree(home.cache / folder)
    home.run(
        model_scenes.compile_model, **functorch
    )  # the generated Python holds the path of the cache: make it for this one
    cold = home.base / "kernels"
    shutil.copytree(home.cache, cold)
    for folder in ("aotautograd", "fxgraph"):
        shutil.rmtree(cold / folder)
    size = sum(p.stat().st_size + 8192 for p in cold.rglob("*")) + (1 << 20)
    shutil.rmtree(home.cache)
    home.cache.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "tmpfs", str(home.cache)], check=True)
    try:
        shutil.copytree(cold, home.cache, dirs_exist_ok=True)
        filler = home.cache / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        yield
    finally:
        subprocess.run(["umount", str(home.cache)], check=True)


@needs_root
@TORCH
def test_full_disk_costs_one_warning(warm, functorch):
    with full_disk(warm, **functorch):
        answer = warm.run(model_scenes.compile_model, **functorch)
        assert answer.ok and "unwritable" not in answer.stats, answer
        assert len(answer.warnings) == 1 and "No space left" in answer.warnings[0], answer
        assert "TORCHINDUCTOR_CACHE_DIR" in answer.warnings[0] and answer.torch_warnings == [], answer
        assert warm.leftovers == [] and warm.aot_entries == warm.fx_entries == []
        (warm.cache / "filler").unlink()
        assert warm.run(model_scenes.compile_model, **functorch).ok
        assert warm.run(model_scenes.compile_model, **functorch).hits == WARM, "with room again, it recovers by itself"


@needs_root
def test_full_disk_is_an_error_in_strict_mode(warm):
    with full_disk(warm):
        answer = warm.run(strict=True)
    assert "CacheWriteError" in answer.errors, answer
    assert "No space left" in answer.messages[answer.errors.index("CacheWriteError")]


@TORCH
def test_directories_that_may_not_be_written_bypass_the_save(warm, functorch):
    if functorch:
        assert warm.run(model_scenes.compile_model, **functorch).ok
    for folder in ("aotautograd", "fxgraph"):
        shutil.rmtree(warm.cache / folder)
        (warm.cache / folder).mkdir(mode=0o555)
    answer = warm.run(model_scenes.compile_twice, unprivileged=True, **functorch)
    assert answer.ok and answer.torch_warnings == [], answer
    assert len(answer.warnings) == 1 and "Permission denied" in answer.warnings[0], answer


def test_file_where_the_folder_of_all_entries_should_be_is_set_aside(warm):
    for folder in ("aotautograd", "fxgraph"):
        shutil.rmtree(warm.cache / folder)
        (warm.cache / folder).write_text("in the way")
    answer = warm.run(model_scenes.compile_twice)
    assert answer.ok and answer.torch_warnings == [], answer
    again = warm.run(strict=True)
    assert again.ok and again.hits == WARM, again


@needs_root
def test_key_that_cannot_be_made_bypasses_the_save_and_says_how_to_give_one(home):
    home.base.joinpath("config").write_text("no directory")
    answer = home.run(model_scenes.compile_twice)
    assert answer.ok and len(answer.warnings) == 1, answer
    assert "SAFECACHE_KEY_FILE" in answer.warnings[0] and answer.stats["no key"] >= 3, answer
    assert home.aot_entries == home.fx_entries == [], "nobody would take an entry without a seal"
    assert "KeyringError" in home.run(strict=True).errors
    (home.base / "secret").write_bytes(os.urandom(32))
    (home.base / "secret").chmod(0o600)
    env = {"SAFECACHE_KEY_FILE": str(home.base / "secret")}
    assert home.run(env=env).stats["saved"] == 3 and home.run(env=env, strict=True).hits == WARM
    (home.base / "config").unlink()
    assert home.run().stats["saved"] == 3 and home.run().hits == WARM


def test_lost_key_is_said_once_with_both_ways_out(warm):
    shutil.rmtree(warm.keys)
    first = warm.run()
    assert first.ok and first.result["aot"]["saved"] == 1, first
    assert first.stats["unknown key"] == 4, "three entries and a library"
    about_entries = [text for text in first.warnings if " entry " in text]
    assert about_entries and len({text.split(" ")[2] for text in first.warnings}) == len(first.warnings), first
    assert "SAFECACHE_KEY_FILE" in about_entries[0] and f"safecache adopt {warm.cache}" in about_entries[0], first
    second = warm.run()
    assert second.ok and second.hits == WARM, second
    assert len(warm.aot_entries) == 2, "the other key's entries are left to whoever holds it"


def test_key_file_lets_another_home_use_the_cache(warm, session_directory, zygote):
    key_file = warm.base / "secret"
    key_file.write_bytes(os.urandom(32))
    key_file.chmod(0o400)
    env = {"SAFECACHE_KEY_FILE": str(key_file)}
    warm.run(env=env)
    other = Home(warm.base / "elsewhere", zygote)
    other.environment = isolated_environment(other.base) | {"TORCHINDUCTOR_CACHE_DIR": str(warm.cache)}
    answer = other.run(env=env)
    assert answer.ok and answer.hits == WARM, answer
    assert not other.keys.exists()
