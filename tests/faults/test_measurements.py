"""The file of what max-autotune has measured: whatever becomes of it, the compile goes on."""

from __future__ import annotations

import pytest
from conftest import needs_root
from scenes import artifact_scenes

from faults import damage

TIMES = {"one": 1.5, "two": 1.5}
STRICTNESS = pytest.mark.parametrize("strict", [False, True], ids=["default", "strict"])


@pytest.fixture
def measured(home):
    """A home where the choices have been measured, and the file that says so."""
    answer = home.run(artifact_scenes.choose)
    assert answer.ok and answer.result == {"times": TIMES, "measured": ["one", "two"]} and not answer.warnings, answer
    (home.file,) = (path for path in (home.cache / "cache").iterdir() if path.is_file())
    return home


def holding(text):
    def hold(path):
        path.write_text(text)

    return pytest.param(hold, id=text[:30])


DAMAGE = [
    damage.truncate_to_half,
    damage.truncate_by_one,
    damage.empty,
    damage.garbage,
    damage.zeros,
    damage.zero_tail,
    damage.fifo,
    damage.dangling_link,
    holding("{}"),
    holding("[]"),
    holding('{"cache": null}'),
    holding('{"cache": {"mm": ["inputs"]}}'),
    holding('{"cache": {"mm": {"inputs": {"ieee": {"one": "fast", "two": "fast"}}}}}'),
    holding("[" * 100_000),
]


def test_measurements_are_read_in_a_fresh_process_and_by_stock_torch(measured):
    for stock in (False, True):
        answer = measured.run(artifact_scenes.choose, stock=stock)
        assert answer.ok and answer.result == {"times": TIMES, "measured": []}, answer


@pytest.mark.parametrize("how", DAMAGE)
def test_damaged_measurements_are_made_anew_with_one_warning_and_heal(measured, how):
    how(measured.file)
    answer = measured.run(artifact_scenes.choose)
    assert answer.ok and answer.result == {"times": TIMES, "measured": ["one", "two"]}, answer
    assert len(answer.warnings) == 1 and str(measured.file) in answer.warnings[0], answer
    again = measured.run(artifact_scenes.choose)
    assert again.ok and again.result["measured"] == [] and not again.warnings, again


def test_damaged_measurements_are_an_error_in_strict_mode_and_of_stock_torch(measured):
    damage.truncate_to_half(measured.file)
    assert measured.run(artifact_scenes.choose, strict=True).errors[0] == "CacheReadError"
    assert measured.run(artifact_scenes.choose, stock=True).errors[0] == "JSONDecodeError"


@needs_root
@STRICTNESS
def test_measurements_that_cannot_be_written_are_a_warning(measured, strict):
    measured.file.unlink()
    measured.file.parent.chmod(0o555)
    answer = measured.run(artifact_scenes.choose, strict=strict, unprivileged=True)
    if strict:
        assert answer.errors[0] == "CacheWriteError", answer
    else:
        assert answer.ok and answer.result["times"] == TIMES and len(answer.warnings) == 1, answer
        assert "Permission denied" in answer.warnings[0], answer
    assert not measured.run(artifact_scenes.choose, stock=True, unprivileged=True).ok
