"""Sources that somebody has edited or written by hand: run where safecache is off, as the guide says, and never by mistake."""

from __future__ import annotations

import pytest
from scenes import model_scenes, sink_scenes


@pytest.fixture
def edited(home):
    """An unpacked artifact, the wrapper in it, what that was, and the mark that its new last line leaves."""
    path, mark = home.base / "artifact", home.base / "mark"
    assert home.run(model_scenes.standalone, save=str(path), fmt="unpacked").ok
    # Beside the wrapper lie the sources of the kernels that it names.
    (wrapper,) = (file for file in path.glob("??/*.py") if "def call(" in file.read_text())
    generated = wrapper.read_text()
    wrapper.write_text(f"{generated}\nopen({str(mark)!r}, 'w').close()\n")
    return path, wrapper, generated, mark


def load(home, path, **how):
    return home.run(model_scenes.load_standalone, path=str(path), fmt="unpacked", **how)


def test_edited_wrapper_is_run_where_safecache_is_off(home, edited):
    path, wrapper, generated, mark = edited
    answer = load(home, path, stock=True)
    assert answer.ok and answer.result is True and mark.exists(), answer
    assert wrapper.read_text() != generated


def test_edited_wrapper_is_replaced_by_the_generated_one_and_kept_in_quarantine(home, edited):
    path, wrapper, generated, mark = edited
    edit = wrapper.read_text()
    answer = load(home, path)
    assert answer.ok and answer.result is True and not mark.exists(), answer
    assert wrapper.read_text() == generated
    assert len(answer.warnings) == 1 and "it is not what was generated" in answer.warnings[0]
    (kept,) = (file for file in path.glob(".safecache/quarantine/*") if file.suffix != ".json")
    assert kept.read_text() == edit and str(kept) in answer.warnings[0]


def test_edited_wrapper_is_an_error_in_strict_mode(home, edited):
    path, wrapper, _, mark = edited
    answer = load(home, path, strict=True)
    assert answer.errors[0] == "RefusedArtifactError" and str(wrapper) in answer.messages[0], answer
    assert not mark.exists()


@pytest.mark.parametrize("strict", [False, True], ids=["default", "strict"])
@pytest.mark.parametrize("how", ["key", "hash", "text"])
def test_source_written_by_hand_is_loaded_by_its_text_or_its_hash(home, how, strict):
    path = home.base / "by_hand.py"
    path.write_text("VALUE = 7\n")
    assert home.run(sink_scenes.load_source, path=str(path), how=how, stock=True).result == 7
    answer = home.run(sink_scenes.load_source, path=str(path), how=how, strict=strict)
    if how != "key":
        assert answer.ok and answer.result == 7 and not answer.warnings, answer
        return
    assert answer.errors == ["EntryRefusedError"] and not answer.warnings, answer
    assert f"{path} [" in answer.messages[0] and "PyCodeCache.load()" in answer.messages[0], answer
    assert path.exists(), "a file of the user's own is left alone"
