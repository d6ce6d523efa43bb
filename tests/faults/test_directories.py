"""Whatever is wrong with a directory, the compile result comes back, with one warning, and the next process is as ever."""

from __future__ import annotations

import shutil

import pytest
from conftest import WARM, needs_root
from scenes import model_scenes

from faults.directory_cases import CASES, COLD_ONLY

pytestmark = needs_root
ERRORS = {"CacheWriteError", "CacheReadError", "EntryRefusedError", "ExecutionError"}
# One of each kind, which is for every release of torch.
EVERYWHERE = {"read-only", "file in the way", "disk full", "noexec", "locks held"}


def each(names, is_warm):
    for name in names:
        marks = () if name in EVERYWHERE else pytest.mark.default_release
        yield pytest.param(name, is_warm, id=f"{name}-{'warm' if is_warm else 'cold'}", marks=marks)


BOTH = [*each(CASES, False), *each([name for name in CASES if name not in COLD_ONLY], True)]
CASE = pytest.mark.parametrize(("name", "is_warm"), BOTH)


@pytest.fixture
def place(home, warm_template, request):
    """The home of a case, warm if it says so, its keys made."""
    name, is_warm = request.node.callspec.params["name"], request.node.callspec.params["is_warm"]
    home.template = warm_template
    home.environment |= CASES[name].env | {"TMPDIR": str(home.base / "tmp")}
    home.environment["XDG_CONFIG_HOME"] = str(warm_template.base / "config")
    (home.base / "tmp").mkdir()
    if is_warm:
        shutil.copytree(warm_template.cache, home.cache, symlinks=True)
    return home


def left_behind(home):
    """Temporary files of ours, of torch's and of a probe; and whatever else a process that has ended needs no more."""
    found = [path for path in home.base.rglob("*") if path.name.endswith(".tmp") or "probe-" in path.name]
    return found + list(home.base.rglob("*_CxxBuild")) + list(home.base.glob("tmp/safecache-*"))


@CASE
def test_result_comes_back_with_one_warning_and_the_next_process_recovers(place, name, is_warm):
    case = CASES[name]
    with case.broken(place):
        answer = place.run(model_scenes.compile_and_end, **case.how)
        assert answer.ok, answer
        assert len(answer.warnings) <= case.warnings, answer
        assert left_behind(place) == [], answer
        assert is_warm or answer.warnings or name == "temporary directory read-only", answer
    if not is_warm and not any(place.cache.glob("*")):
        return  # nothing is left that a next process could stumble over
    again = place.run()
    assert again.ok and not again.warnings, again
    if again.hits != WARM:
        again = place.run()
    assert again.hits == WARM and not again.warnings, again


@pytest.mark.default_release
@CASE
def test_strict_mode_names_the_directory(place, name, is_warm):
    case = CASES[name]
    with case.broken(place):
        answer = place.run(strict=True, **case.how)
    if is_warm and name.startswith("locks"):
        assert answer.ok and answer.hits == WARM, "what is attested takes no lock"
        return
    if case.strict is None:
        assert answer.ok or ERRORS & set(answer.errors), answer
        return
    assert case.strict in answer.errors, answer
    said = answer.messages[answer.errors.index(case.strict)]
    assert str(place.base) in said, answer


@pytest.mark.default_release
@pytest.mark.parametrize(("name", "is_warm"), [case for case in BOTH if None not in CASES[case.values[0]].stock])
def test_stock_torch_fails_where_we_say_so(place, name, is_warm):
    case = CASES[name]
    with case.broken(place):
        answer = place.run(stock=True, **case.how)
    assert answer.ok is not case.stock[is_warm], answer


FULL_HITS = ("read-only", "read-only file system", "noexec")


@pytest.mark.parametrize(("name", "is_warm"), [pytest.param(name, True, id=name) for name in FULL_HITS])
def test_warm_cache_that_cannot_be_written_is_a_full_hit(place, name, is_warm):
    case = CASES[name]
    with case.broken(place):
        answer = place.run(model_scenes.compile_and_count_builds, **case.how)
    assert answer.ok and answer.hits == WARM and answer.result["builds"] == 0, answer
    assert len(answer.warnings) == 1, answer
