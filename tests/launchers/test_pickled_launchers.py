"""A launcher that was pickled, plainly, launches its kernel in another process."""

from __future__ import annotations

import pickle

import pytest
from scenes import launcher_scenes

pytest.importorskip("triton")

KIND = pytest.mark.parametrize("static", [True, False], ids=["static", "ordinary"])
KINDS = pytest.mark.parametrize("kind", ["static", "ordinary", "store_cubin"])
CONTAINERS = ["itself", "key", "partial", "argument", "dataclass", "plugin", "unpickled", "unpickled and loaded"]


@KIND
def test_launcher_launches_in_another_process(home, static):
    path = str(home.base / "launcher.pkl")
    made = home.run(launcher_scenes.dump_launcher, path=path, static=static)
    assert made.ok, made
    answer = home.run(launcher_scenes.launch_pickled, path=path)
    assert answer.ok, answer
    assert answer.result["loaded before"] == [], "unpickling must not touch the GPU"
    (launched,) = answer.result["launched"]
    assert launched[:7] == [8, 1, 1, 5, "in", "out", 1000]
    assert answer.result["qualname"] == made.result["qualname"]


def test_launcher_of_a_kernel_from_a_compile_worker_launches_in_another_process(home):
    path = str(home.base / "launcher.pkl")
    assert home.run(launcher_scenes.dump_launcher_of_a_worker, path=path).ok
    answer = home.run(launcher_scenes.launch_pickled, path=path)
    assert answer.ok and [launched[:3] for launched in answer.result["launched"]] == [[8, 1, 1]], answer


@KIND
def test_stock_launcher_does_not_pickle(home, static):
    answer = home.run(launcher_scenes.dump_launcher, path=str(home.base / "launcher.pkl"), static=static, stock=True)
    assert answer.error == "PicklingError" and "launcher" in answer.messages[0], answer


@pytest.mark.parametrize("pickler", ["pickle", "cloudpickle"])
@KINDS
def test_launcher_pickles_inside_of_other_objects_with_every_protocol(home, kind, pickler):
    pytest.importorskip(pickler)
    path = str(home.base / "launchers.pkl")
    made = home.run(launcher_scenes.dump_containers, path=path, name=kind, pickler=pickler)
    assert made.ok, made
    answer = home.run(launcher_scenes.launch_contained, path=path)
    assert answer.ok and list(answer.result) == CONTAINERS, answer
    for container, pickles in answer.result.items():
        assert len(pickles) == pickle.HIGHEST_PROTOCOL - 1
        for told in pickles:
            assert told["name"] == made.result and told["loaded"] == [0, 1], container
            assert told["one"], (container, "two references to a launcher must stay two to one launcher")
            assert [launched[:7] for launched in told["launched"]] == [[8, 1, 1, 5, "in", "out", 1000]], container


@KINDS
def test_copies_of_a_launcher_are_the_launcher(home, kind):
    """As with the function that it is in stock torch."""
    answer = home.run(launcher_scenes.copy_launcher, name=kind)
    assert answer.ok and answer.result == [True] * 9, answer


def test_function_as_meta_parameter_is_what_stops_the_pickle(home):
    """The config of such a kernel refers to a function of the user's module, which is another object there."""
    answer = home.run(
        launcher_scenes.dump_containers, path=str(home.base / "launchers.pkl"), name="user", containers=["itself"]
    )
    assert answer.error == "PicklingError" and "triton_kernels.double" in answer.messages[0], answer
