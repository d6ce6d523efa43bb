"""An entry that cannot be prepared or pickled is not saved; the compile goes on, and one warning says which object."""

from __future__ import annotations

import re

import pytest
from conftest import WARM
from scenes import model_scenes
from scenes.model_scenes import PLACES, UNPICKLABLE

STRICT_TORCH = [{}, {"strict_autograd_cache": True}]
STRICT_TORCH_IDS = ["torch-lax", "torch-strict"]


# Each object once, and one of them in each place with each of torch's settings.
CASES = [
    *(("lambda", place, functorch) for place in PLACES for functorch in STRICT_TORCH),
    *(
        (what, PLACES[at % 2], STRICT_TORCH[at // 2 % 2])
        for at, what in enumerate(what for what in UNPICKLABLE if what != "lambda")
    ),
]


def hits_without_it(home, **functorch):
    """The second start, once the graph is saved."""
    first, second = (home.run(model_scenes.compile_model, **functorch) for _ in range(2))
    return first.ok and first.result["aot"]["hit"] == 0 and second.hits == WARM


@pytest.mark.parametrize(("what", "place", "functorch"), CASES)
def test_compile_goes_on_with_one_warning_that_names_the_path(home, what, place, functorch):
    answer = home.run(model_scenes.compile_with, injection=what, place=place, **functorch)
    assert answer.ok, answer
    assert answer.torch_warnings == [], answer
    (text,) = answer.warnings
    path = "entry.runtime_metadata.injected[0]['launcher']" if place == "aot" else "entry.injected[0]['launcher']"
    assert path in text and "Every process recompiles this graph" in text, answer
    if what == "lambda":
        assert "scenes.py:" in text and "<lambda>" in text and "is a function" in text, answer
    assert home.aot_entries == [], "an entry that refers to a graph that was not saved would miss for ever"
    assert len(home.fx_entries) == (2 if place == "aot" else 0)
    if what == "lambda":
        assert "unpicklable" in answer.stats and ("incomplete" in answer.stats) == (place == "fx"), answer
        assert hits_without_it(home, **functorch)


@pytest.mark.parametrize("functorch", STRICT_TORCH, ids=STRICT_TORCH_IDS)
def test_graph_that_cannot_be_prepared_is_not_saved(home, functorch):
    answer = home.run(model_scenes.compile_with, injection="lambda", place="prepare", **functorch)
    assert answer.ok and answer.torch_warnings == [], answer
    assert len(answer.warnings) == 1 and "cannot be prepared" in answer.warnings[0], answer
    assert answer.stats["could not prepare"] >= 1 and hits_without_it(home, **functorch), answer


@pytest.mark.parametrize("place", [*PLACES, "prepare"])
def test_strict_mode_raises_an_error_that_names_the_path(home, place):
    answer = home.run(model_scenes.compile_with, injection="launcher", place=place, strict=True)
    assert "UnpicklableEntryError" in answer.errors, answer
    text = answer.messages[answer.errors.index("UnpicklableEntryError")]
    assert ("injected[0]['launcher']" if place != "prepare" else "cannot be prepared") in text, answer


@pytest.mark.parametrize("place", PLACES)
def test_an_interrupt_passes_through_untouched(home, place):
    """vLLM ends a compile with StopCompiling(BaseException)."""
    answer = home.run(model_scenes.compile_with, injection="interrupt", place=place)
    assert answer.error == "PrivateInterrupt", answer
    assert answer.warnings == [], answer


@pytest.mark.parametrize("place", PLACES)
def test_ahead_of_time_compile_goes_on(home, place):
    """torch.compile(...).aot_compile turns torch's strict mode on by itself."""
    answer = home.run(model_scenes.aot_compile, injection="launcher", place=place)
    assert answer.ok and len(answer.warnings) == 1 and "['launcher']" in answer.warnings[0], answer


@pytest.mark.parametrize("functorch", STRICT_TORCH, ids=STRICT_TORCH_IDS)
@pytest.mark.parametrize("place", PLACES)
def test_standalone_compile_to_one_bundle_goes_on(home, place, functorch):
    answer = home.run(model_scenes.standalone, injection="launcher", place=place, functorch=functorch, aot=True)
    assert answer.ok and len(answer.warnings) == 1, answer


@pytest.mark.parametrize("functorch", STRICT_TORCH, ids=STRICT_TORCH_IDS)
@pytest.mark.parametrize("place", [*PLACES, "prepare"])
def test_standalone_compile_goes_on(home, place, functorch):
    answer = home.run(model_scenes.standalone, injection="launcher", place=place, functorch=functorch)
    assert answer.ok and len(answer.warnings) == 1, answer
    assert not answer.result["saveable"], "an artifact without its graph would be saved, and fail where it is loaded"


CULPRIT = r"injected\[0\]\['launcher'\] is a function, defined at \S*scenes.py:\d+ .*"
REMEDY = r"Nothing can be saved\. Help: make the object picklable, or keep it out of the compiled graph\)"


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("scene", "options"),
    [
        (model_scenes.standalone, {"fmt": "binary"}),
        (model_scenes.standalone, {"fmt": "unpacked"}),
        (model_scenes.standalone, {"aot": True}),
        (model_scenes.aot_compile, {}),
    ],
    ids=["binary", "unpacked", "bundle", "aot_compile"],
)
def test_explicit_save_raises_torchs_error_with_the_path_to_the_object(home, scene, options, place):
    given = {"injection": "lambda", "place": place, "save": str(home.base / "artifact"), **options}
    stock = home.run(scene, stock=True, **given)
    answer = home.run(scene, **given)
    if stock.errors:
        assert answer.errors[0] == stock.errors[0], (answer, stock)
        assert answer.messages[0].startswith(stock.messages[0].partition("\n")[0][:60]), answer
    else:
        # Stock saves an artifact without its graph, which fails where it is loaded.
        assert (scene, place) == (model_scenes.standalone, "fx") and answer.errors[0] == "RuntimeError", answer
    assert re.search(rf"\(safecache: .*{CULPRIT}{REMEDY}", answer.messages[0], re.DOTALL), answer


def test_failure_of_another_compile_is_not_named_by_a_save(home):
    """An artifact that cannot be saved for another reason says what torch says."""
    answer = home.run(model_scenes.save_without_artifacts_after_a_failure, path=str(home.base / "artifact"))
    assert "RuntimeError" in answer.errors and "safecache" not in answer.messages[0], answer


def test_uncacheable_graph_is_no_failure_where_torch_is_strict(home):
    answer = home.run(model_scenes.compile_uncacheable, strict_autograd_cache=True)
    assert answer.ok and len(answer.warnings) == 1 and "BypassAOTAutogradCache" in answer.warnings[0], answer
    assert answer.stats["not cacheable"] == 1 and hits_without_it(home, strict_autograd_cache=True), answer


def test_uncacheable_graph_stays_silent_by_default(home):
    answer = home.run(model_scenes.compile_uncacheable)
    assert answer.ok and answer.warnings == [] and answer.torch_warnings == [], answer
