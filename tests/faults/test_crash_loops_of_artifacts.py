"""What was compiled ahead of time and no process survives is refused by the next one; stock torch dies of it each time."""

from __future__ import annotations

import os
import shutil
import signal

import pytest
from scenes import artifact_scenes, trial_scenes
from scenes.trial_scenes import FAIL, KILL, KILL_IF_TOLD, SEGFAULT

pytestmark = pytest.mark.xdist_group("crash loops of artifacts")

KINDS = {
    "function": (artifact_scenes.save_function, artifact_scenes.load_function),
    "model": (artifact_scenes.save_model, artifact_scenes.load_model),
    "standalone ahead of time": (artifact_scenes.save_bundled, artifact_scenes.load_bundled),
    "standalone ahead of time, as a file": (artifact_scenes.save_bundled_as_file, artifact_scenes.load_standalone),
    "standalone": (artifact_scenes.save_standalone, artifact_scenes.load_standalone),
}


# One by each way to load: what is counted, and when, does not depend on what is loaded.
WAYS = ["function", "standalone ahead of time, as a file", "standalone"]


class Artifact:
    """One of a kind, in a file of the user's."""

    def __init__(self, home, kind):
        self.home, self.path = home, str(home.base / "artifact")
        self.save, self.load = KINDS[kind]

    def make(self, what=""):
        made = self.home.run(trial_scenes.save_spoiled, save=self.save, path=self.path, what=what)
        assert made.ok, made

    def use(self, **how):
        return self.home.run(self.load, path=self.path, **how)


@pytest.fixture
def artifact(request, home):
    return Artifact(home, request.param)


EACH_KIND = pytest.mark.parametrize("artifact", KINDS, indirect=True)
EACH_WAY = pytest.mark.parametrize("artifact", WAYS, indirect=True)


def died_of(answer):
    return answer.died is not None and os.WIFSIGNALED(answer.died) and os.WTERMSIG(answer.died)


def is_refused(answer):
    return answer.error == "RefusedArtifactError" and "refused " in answer.messages[0]


@EACH_KIND
def test_artifact_that_ends_the_process_ends_one(artifact, tmp_path):
    """Stock torch dies each time, and so does safecache without trials."""
    artifact.make(SEGFAULT)
    assert [died_of(artifact.use(stock=True)) for _ in range(2)] == [signal.SIGSEGV] * 2
    off = {"SAFECACHE_TRIALS": "0"}
    assert [died_of(artifact.use(env=off)) for _ in range(2)] == [signal.SIGSEGV] * 2
    shutil.copytree(artifact.home.base, tmp_path / "before", symlinks=True)
    assert died_of(artifact.use(strict=True)) == signal.SIGSEGV
    answer = artifact.use(strict=True)
    assert "EntryRefusedError" in answer.errors and "Segmentation fault" in " ".join(answer.messages), answer
    answer = artifact.use(strict=True)
    assert is_refused(answer), answer

    shutil.rmtree(artifact.home.base)
    shutil.copytree(tmp_path / "before", artifact.home.base, symlinks=True)
    assert died_of(artifact.use()) == signal.SIGSEGV
    for _ in range(2):
        answer = artifact.use()
        assert is_refused(answer), answer
    artifact.make()
    assert artifact.use(strict=True).ok


@EACH_WAY
def test_death_of_which_nothing_is_left_counts_once_it_happens_again(artifact):
    artifact.make(KILL)
    assert [died_of(artifact.use()) for _ in range(2)] == [signal.SIGKILL] * 2
    answer = artifact.use()
    assert is_refused(answer), answer


@pytest.mark.parametrize("artifact", [kind for kind in KINDS if "file" not in kind], indirect=True)
def test_exception_of_the_code_itself_has_it_refused(artifact):
    artifact.make(FAIL)
    answer = artifact.use()
    assert answer.error == "AssertionError" and "expected size 8 == 9" in answer.messages[0], answer
    assert len(answer.warnings) == 1 and "[failed on first run]" in answer.warnings[0], answer
    answer = artifact.use()
    assert is_refused(answer), answer


@EACH_WAY
def test_artifact_that_crashes_again_once_it_was_compiled_anew_is_not_tried_a_third_time(artifact):
    for _ in range(2):
        artifact.make(SEGFAULT)
        assert died_of(artifact.use()) == signal.SIGSEGV
    artifact.make(SEGFAULT)
    answer = artifact.use()
    assert is_refused(answer), answer


@EACH_WAY
def test_nothing_is_left_against_an_artifact_that_runs_well(artifact):
    artifact.make(KILL_IF_TOLD)
    for _ in range(3):
        assert died_of(artifact.use(env={"KILL_ME": "1"})) == signal.SIGKILL
        answer = artifact.use()
        assert answer.ok and not answer.warnings, answer
    assert not list(artifact.home.cache.glob(".safecache/trials/*"))


def test_precompile_entry_that_ends_the_process_is_compiled_anew_by_the_next(home):
    save, load = artifact_scenes.save_precompile, artifact_scenes.load_precompile
    assert home.run(trial_scenes.save_spoiled, save=save, path="", what=SEGFAULT).ok
    assert died_of(home.run(load, path="")) == signal.SIGSEGV
    answer = home.run(load, path="")
    assert answer.ok and len(answer.warnings) == 1, answer
    assert "[crashed on first run]" in answer.warnings[0] and "Segmentation fault" in answer.warnings[0]
    assert home.run(save, path="").ok
    answer = home.run(load, path="")
    assert answer.ok and answer.result and not answer.warnings, answer


@pytest.fixture(scope="module")
def packages(new_home, tmp_path_factory):
    """Packages of AOTInductor, one that crashes and one that throws if it is told to, and the home they were made in."""
    home, base = new_home(), tmp_path_factory.mktemp("packages")
    throw = 'if (std::getenv("TO_THROW")) throw std::runtime_error("no");'
    codes = {"crash": "*(volatile int*)0 = 0;", "good": throw}
    paths = {name: str(base / f"{name}.pt2") for name in codes}
    for name, path in paths.items():
        made = home.run(trial_scenes.package_spoiled, path=path, what=codes[name])
        assert made.ok and not made.warnings, made
    return home, paths


@pytest.mark.parametrize(
    "run",
    [trial_scenes.run_package, trial_scenes.run_package_from_file, trial_scenes.run_package_by_export],
    ids=["path", "file object", "export"],
)
def test_package_that_ends_the_process_ends_one(packages, tmp_path, run):
    maker, paths = packages
    home, bad = type(maker)(tmp_path, maker.zygote), paths["crash"]
    shutil.copytree(maker.keys, home.keys)
    assert [died_of(home.run(run, path=bad, stock=True)) for _ in range(2)] == [signal.SIGSEGV] * 2
    assert died_of(home.run(run, path=bad)) == signal.SIGSEGV
    for each in (run, trial_scenes.run_package):
        answer = home.run(each, path=bad)
        assert answer.error in ("RefusedArtifactError", "EntryRefusedError"), answer
        assert "a process has died when it first ran it" in answer.messages[0], answer
    answer = home.run(run, path=paths["good"])
    assert answer.ok and not answer.warnings, answer


def test_nothing_is_left_of_the_trial_of_a_package_from_the_second_run_on(packages):
    home, paths = packages
    answer = home.run(trial_scenes.run_package, path=paths["good"])
    stock = home.run(trial_scenes.run_package, path=paths["good"], stock=True)
    assert answer.ok and stock.ok and answer.result == ["_Loader", *stock.result[1:]], answer
    assert not list(home.cache.glob(".safecache/trials/*"))


def test_exception_in_the_first_run_of_a_package_counts_for_nothing(packages):
    home, paths = packages
    for _ in range(3):
        answer = home.run(trial_scenes.run_package, path=paths["good"], env={"TO_THROW": "1"})
        assert answer.error == "RuntimeError" and not answer.warnings, answer


def test_exception_in_the_first_run_of_an_artifact_without_guards_counts_for_nothing(home):
    artifact = Artifact(home, "standalone ahead of time, as a file")
    artifact.make(FAIL)
    for _ in range(3):
        answer = artifact.use()
        assert answer.error == "AssertionError" and "expected size 8 == 9" in answer.messages[0], answer
