"""A library whose record cannot be read is not used, and is there again when that can be read."""

from __future__ import annotations

import contextlib

import pytest
from conftest import WARM, needs_root
from scenes import artifact_scenes, load_scenes, model_scenes

pytestmark = [needs_root, pytest.mark.default_release]
BUILDS = model_scenes.compile_and_count_builds


@contextlib.contextmanager
def closed(home):
    """The records may not be read, as after the umask of another process."""
    records = home.cache / ".safecache" / "records"
    records.chmod(0o000)
    try:
        yield
    finally:
        records.chmod(0o755)


def code(home):
    return {path: path.read_bytes() for path in home.cache.glob("??/*")}


def test_library_is_built_elsewhere_with_one_warning_and_stays(warm):
    before = code(warm)
    with closed(warm):
        answer = warm.run(BUILDS, unprivileged=True)
    assert answer.ok and answer.hits == WARM and answer.result["builds"] == 1, answer
    assert len(answer.warnings) == 1 and "[unreadable]" in answer.warnings[0], answer
    assert "Permission denied" in answer.warnings[0], answer
    assert code(warm) == before and not warm.quarantined
    again = warm.run(BUILDS, unprivileged=True)
    assert again.ok and again.hits == WARM and again.result["builds"] == 0 and not again.warnings, again


def test_library_is_an_error_in_strict_mode_that_names_the_record(warm):
    with closed(warm):
        answer = warm.run(strict=True, unprivileged=True)
    assert "CacheReadError" in answer.errors, answer
    assert ".safecache/records/" in answer.messages[answer.errors.index("CacheReadError")], answer


def test_library_of_an_image_is_built_anew_with_one_warning(warm):
    """Nothing is taken from there either, and nothing else of the image is given up."""
    image = warm.cache.rename(warm.base / "image")
    (image / ".safecache" / "records").chmod(0o000)
    warm.environment["SAFECACHE_LOWER"] = str(image)
    answer = warm.run(BUILDS, unprivileged=True)
    assert answer.ok and answer.hits == WARM and answer.result["builds"] == 1, answer
    assert len(answer.warnings) == 1 and "[unreadable]" in answer.warnings[0], answer


def test_probe_of_vector_instructions_is_made_elsewhere(home):
    assert home.run(load_scenes.find_vector_instructions).result is True
    for note in home.cache.rglob("*.load_ok"):  # with which torch 2.13 does not load it again
        note.unlink()
    before = code(home)
    with closed(home):
        answer = home.run(load_scenes.find_vector_instructions, unprivileged=True)
    assert answer.ok and answer.result is True, answer
    assert len(answer.warnings) == 1 and "[unreadable]" in answer.warnings[0], answer
    assert before and code(home) == before and not home.quarantined


def test_result_of_tuning_chooses_among_the_candidates_with_one_warning(home):
    pytest.importorskip("triton")
    tuning = {"filename": str(home.cache / "ab" / "cab.py")}
    assert home.run(artifact_scenes.save_tuning, size=7, coordesc=True, **tuning).ok
    assert home.run(artifact_scenes.read_tuning, **tuning).result["size"] == 7
    with closed(home):
        answer = home.run(artifact_scenes.read_tuning, unprivileged=True, **tuning)
        assert answer.ok and answer.result["size"] is None, answer
        assert len(answer.warnings) == 1 and "[unreadable]" in answer.warnings[0], answer
        strict = home.run(artifact_scenes.read_tuning, strict=True, unprivileged=True, **tuning)
    assert "CacheReadError" in strict.errors, strict
    assert home.run(artifact_scenes.read_tuning, **tuning).result["size"] == 7 and not home.quarantined
