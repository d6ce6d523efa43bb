"""A cache where others can write, and nobody has said that they should: one warning, and nothing of theirs runs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from conftest import WARM, needs_root
from scenes import load_scenes, model_scenes

from faults.trojan import Attack

pytestmark = [needs_root, pytest.mark.default_release]
STRICTNESS = pytest.mark.parametrize("strict", [False, True], ids=["default", "strict"])
STRANGER = 12345


def give_away(root):
    for path in (root, *root.rglob("*")):
        os.chown(path, STRANGER, STRANGER, follow_symlinks=False)
    root.chmod(0o777)


@STRICTNESS
def test_cache_that_another_user_has_made_before_us(home, strict):
    home.cache.mkdir()
    give_away(home.cache)
    answer = home.run(strict=strict)
    if strict:
        assert "EntryRefusedError" in answer.errors and not home.fx_entries, answer
        assert any(f"{home.cache} belongs to uid {STRANGER}" in text for text in answer.messages), answer
        return
    assert answer.ok and len(answer.warnings) == 1 and answer.stats["saved"] == 3, answer
    assert f"{home.cache} belongs to uid {STRANGER}" in answer.warnings[0], answer
    again = home.run()
    assert again.ok and again.hits == WARM and len(again.warnings) == 1, again


@STRICTNESS
@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
def test_what_he_has_planted_there_does_not_run(warm, trojan, strict, cold):
    attack = Attack(warm)
    for path in attack.files("*.so"):
        shutil.copy(trojan, path)
    for path in attack.files("*.cpp") + attack.files("*.py"):
        path.write_text(f"#error planted\n{path.read_text()}")
    if cold:
        for folder in ("aotautograd", "fxgraph", ".safecache"):
            shutil.rmtree(warm.cache / folder)
    give_away(warm.cache)
    answer = attack.run(strict=strict)
    assert not attack.ran, answer
    assert ("EntryRefusedError" in answer.errors) if strict else (answer.ok and answer.warnings), answer


@STRICTNESS
def test_link_of_ours_to_a_private_cache_is_silent(home, strict):
    (home.base / "elsewhere").mkdir()
    home.cache.symlink_to(home.base / "elsewhere")
    for hits in ((0, 0), WARM):
        answer = home.run(strict=strict)
        assert answer.ok and answer.hits == hits and not answer.warnings, answer


def may_follow():
    """Where this is set, the kernel itself does not follow a link of somebody else's in a sticky directory."""
    switch = Path("/proc/sys/fs/protected_symlinks")
    return not switch.exists() or switch.read_text().strip() == "0"


@STRICTNESS
@pytest.mark.skipif(not may_follow(), reason="fs.protected_symlinks")
def test_link_of_somebody_else_is_named(home, strict):
    sticky = home.base / "sticky"
    sticky.mkdir()
    sticky.chmod(0o1777)
    (home.base / "elsewhere").mkdir()
    link = sticky / "cache"
    link.symlink_to(home.base / "elsewhere")
    os.chown(link, STRANGER, STRANGER, follow_symlinks=False)
    answer = home.run(env={"TORCHINDUCTOR_CACHE_DIR": str(link)}, strict=strict)
    said = f"{link} belongs to uid {STRANGER}"
    if strict:
        assert "EntryRefusedError" in answer.errors and any(said in text for text in answer.messages), answer
    else:
        assert answer.ok and len(answer.warnings) == 1 and said in answer.warnings[0], answer


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="no other place for private files")
def test_temporary_directory_that_others_can_write_to(home):
    """As an emptyDir of Kubernetes, mounted at /tmp: 0777, of root, and not sticky."""
    volume = home.base / "tmp"
    volume.mkdir()
    volume.chmod(0o777)
    own = {"TMPDIR": str(volume), "TORCHINDUCTOR_CACHE_DIR": str(volume / "torchinductor")}
    for hits in ((0, 0), WARM):
        answer = home.run(model_scenes.compile_model_and_say_where, env=own)
        assert answer.ok and answer.hits == hits and len(answer.warnings) == 1, answer
        assert not any(path.startswith(str(volume)) for path in answer.result["files"]), answer
    assert not list(volume.glob("safecache-*"))


def test_compile_worker_leaves_the_warning_to_its_parent(home):
    """Of which there are as many as cores."""
    home.cache.mkdir()
    home.cache.chmod(0o777)
    assert home.run(load_scenes.check_exposure, directory=str(home.cache)).result == {"directory writable by others": 1}
    worker = home.run(load_scenes.check_exposure_in_worker, directory=str(home.cache))
    assert worker.ok and worker.result == {}, worker
    strict = home.run(load_scenes.check_exposure_in_worker, directory=str(home.cache), strict=True)
    assert "EntryRefusedError" in strict.errors, strict


def test_probe_of_vector_instructions_is_loaded_from_a_copy(home, zygote):
    if tuple(map(int, zygote.torch.split(".")[:2])) < (2, 13):
        pytest.skip("older torch has its probe loaded from where it lies")
    home.cache.mkdir()
    for mode in (0o755, 0o777):
        home.cache.chmod(mode)
        for marker in home.cache.glob("??/*.load_ok"):
            marker.unlink()
        answer = home.run(load_scenes.probed_libraries)
        (library,) = answer.result
        assert library.startswith(str(home.cache)) is (mode == 0o755), answer
