"""An artifact that cannot be sealed or written costs a warning, not the compile."""

from __future__ import annotations

import pytest
from conftest import needs_root
from scenes import artifact_scenes

pytestmark = pytest.mark.default_release


@needs_root
@pytest.mark.parametrize("scene", [artifact_scenes.save_precompile, artifact_scenes.save_profile])
def test_without_a_key_what_no_process_would_take_is_not_written(home, scene):
    home.base.joinpath("config").write_text("no directory")
    answer = home.run(scene, path="")
    assert answer.ok and len(answer.warnings) == 1 and "SAFECACHE_KEY_FILE" in answer.warnings[0], answer
    assert not [path for path in home.cache.glob("dynamo/**/*") if path.is_file()]


@needs_root
@pytest.mark.parametrize(
    ("save", "load"),
    [
        (artifact_scenes.save_function, artifact_scenes.load_function),
        (artifact_scenes.save_bundled, artifact_scenes.load_bundled),
    ],
    ids=["save_function", "save_bundled"],
)
def test_without_a_key_bytes_are_handed_out_unsealed_for_stock_torch(home, save, load):
    home.base.joinpath("config").write_text("no directory")
    path = str(home.base / "artifact")
    answer = home.run(save, path=path)
    assert answer.ok and len(answer.warnings) == 1 and "SAFECACHE_KEY_FILE" in answer.warnings[0], answer
    assert home.run(load, path=path, stock=True).ok
    assert home.run(load, path=path).errors[0] == "RefusedArtifactError"
    # What it has built before is not what this process has, nor can it be told from what somebody else has put there.
    elsewhere = {"TORCHINDUCTOR_CACHE_DIR": str(home.base / "elsewhere")}
    assert "KeyringError" in home.run(save, path=path, strict=True, env=elsewhere).errors


@pytest.mark.parametrize("scene", [artifact_scenes.save_precompile, artifact_scenes.save_profile])
def test_file_in_place_of_the_folder_bypasses_the_save(home, scene):
    home.cache.mkdir()
    (home.cache / "dynamo").write_text("in the way")
    answer = home.run(scene, path="")
    assert answer.ok and answer.stats["unwritable"] >= 1, answer
    (warning,) = answer.warnings
    assert str(home.cache / "dynamo") in warning and "TORCHINDUCTOR_CACHE_DIR" in warning, answer
    assert "CacheWriteError" in home.run(scene, path="", strict=True).errors
    elsewhere = home.run(scene, path="", env={"TORCHINDUCTOR_CACHE_DIR": str(home.base / "elsewhere")})
    assert elsewhere.ok and not elsewhere.warnings and "unwritable" not in elsewhere.stats, elsewhere
