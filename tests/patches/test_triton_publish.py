"""A Triton whose sources have the patch ``publish``: no step of its cache that a compile can do without fails one."""

from __future__ import annotations

import errno
import os

import pytest
from conftest import needs_root
from faults.small_disks import FAULTS, mounted
from scenes import kernel_scenes, triton_cache_scenes

from patches import triton_scenes
from patches.conftest import needs_triton

pytestmark = needs_triton

DAMAGES = (
    [f"{how}-metadata" for how in ("no", "cut", "empty", "garbage", "unreadable")]
    + ["list-as-metadata", "other-metadata", "no-cubin", "empty-cubin", "unreadable-cubin", "garbage-text", "no-text"]
    + ["no-list", "cut-list", "garbage-list", "unreadable-list", "list-of-nothing", "list-of-no-paths"]
)
# What Triton does by itself, since the release given with it.
BY_ITSELF = {"no-metadata": (3, 6), "no-text": (3, 6), "no-list": (3, 6), "no-cubin": (3, 8)} | {
    f"{how}-list": (3, 7) for how in ("cut", "garbage", "unreadable")
}
# A call of os, its error, whether it fails after it has done its work, and how many warnings that makes.
STEPS = [
    ("rmdir", "EBUSY", False, 0),  # there is nothing to clean up
    ("rmdir", "ESTALE", False, 0),
    ("replace", "EBUSY", False, 1),
    ("replace", "ESTALE", False, 1),
    ("replace", "ENOENT", True, 1),  # of a rename that took place, when the reply was lost
    ("makedirs", "EACCES", False, 1),
]
# A compile takes more than these hold.
SMALL = {"space-for-some": "size=24k", "inodes-for-some": "nr_inodes=6"}
KERNEL, MODULE = (triton_cache_scenes.compile_twice, {}), (triton_scenes.build_twice, {})


def name_of(step):
    return "-".join(map(str, step[:2]))


@pytest.fixture(scope="module")
def said(triton_run, tmp_path_factory):
    """What came of it on patched and on pristine sources."""
    requests = {}
    for step in STEPS:
        arguments = dict(zip(("call", "error", "after"), step[:3], strict=True))
        requests[name_of(step)] = [(triton_scenes.compile_while_failing, arguments), KERNEL]
    for when in ("put", "put_group"):
        requests[when] = [(triton_cache_scenes.compile_and_clear, {"when": when}), KERNEL]
    requests["once"] = [(triton_scenes.compile_while_failing, {"call": "replace", "error": "EIO", "times": 1})]
    requests["same-names"] = [(triton_scenes.put_by_two_with_the_same_names, {})]
    requests["dump"] = [(triton_scenes.dump_below_a_file, {})]
    for umask in ("027", "0"):
        requests[umask] = [(triton_scenes.put_with_umask, {"umask": umask})]
    requests["text"] = [(triton_scenes.put_text, {})]
    requests["damaged"] = [(triton_scenes.compile_damaged, {})]  # last, since it gives up capabilities
    homes = {names: tmp_path_factory.mktemp("home") for names in ((), ("publish",))}
    return [triton_run(names, home, requests) for names, home in homes.items()][::-1]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_entry_is_compiled_anew_and_replaced(said, damage):
    outcomes = said[0].result("damaged")
    assert sorted(outcomes) == sorted(DAMAGES)
    assert outcomes[damage] == ["compiled", "hit"]


@pytest.mark.parametrize("damage", DAMAGES)
def test_stock_fails_of_it_for_good(said, damage):
    first, second = said[1].result("damaged")[damage]
    if said[1].release >= BY_ITSELF.get(damage, (99,)):
        assert first in ("compiled", "hit") and second == "hit"
    else:
        assert first == second and (first.endswith("Error") or first == "hit wrong")


@pytest.mark.parametrize("step", STEPS, ids=name_of)
def test_step_that_fails_each_time_fails_no_compile(said, step):
    patched, stock = (one.answers[name_of(step)] for one in said)
    assert stock[0]["error"][0][1].startswith(f"[Errno {getattr(errno, step[1])}]"), stock
    assert patched[0]["result"]["compiled"] and len(patched[0]["warnings"]) == step[3], patched
    assert patched[1]["result"] == [step[3] > 0, False], "it recovers by itself"


@pytest.mark.parametrize("when", ["put", "put_group"])
def test_cache_that_is_cleared_during_a_compile_fails_no_compile(said, when):
    """Or of which a file is replaced under a reader: triton #11512."""
    patched, stock = (one.answers[when] for one in said)
    assert "error" in stock[0]
    assert patched[0]["result"]["compiled"] and len(patched[0]["warnings"]) == 1, patched
    assert patched[1]["result"] == [True, False]


def test_group_of_which_one_file_cannot_be_kept_is_not_published(said):
    patched = said[0]
    assert patched.result("once")["compiled"]
    assert patched.cache.is_dir() and not list((patched.cache / "once").glob("*/*"))


def test_two_writers_of_one_name_do_not_take_each_others_file(said):
    """As two containers on one volume, should their random numbers be the same as well."""
    assert [one.result("same-names") for one in said] == ["first", "second" * 9]


def test_dump_that_cannot_be_written_fails_no_compile(said):
    patched, stock = (one.answers["dump"][0] for one in said)
    assert patched["result"] is True and len(patched["warnings"]) == 1, patched
    assert stock["error"][0][0] == "NotADirectoryError"


@pytest.mark.parametrize("name", ["027", "0", "text"])
def test_modes_and_texts_are_those_of_triton(said, name):
    patched, stock = said
    assert patched.result(name) == stock.result(name)


def test_each_reads_what_the_other_has_written(triton_run, tmp_path):
    for writer, reader in (((), ("publish",)), (("publish",), ())):
        home = tmp_path / "-".join(("from", *writer))
        group = triton_run(writer, home, {"put": [(triton_scenes.put_group, {})]}).result("put")
        assert os.path.basename(group) == "__grp__k.json"
        group = triton_run(reader, home, {"get": [(triton_scenes.get_group, {})]}).result("get")
        assert sorted(group) == ["k.cubin", "k.json"]


@needs_root
@pytest.mark.parametrize("fault", FAULTS)
def test_file_system_that_takes_nothing_costs_one_warning_and_the_cache(triton_run, tmp_path, fault):
    options, break_it, mend, says = FAULTS[fault]
    with mounted(tmp_path / "triton", SMALL.get(fault, options)) as point:
        break_it(point)
        stock = triton_run((), tmp_path, {"stock": [(kernel_scenes.compile_kernel, {})]}).answers["stock"][0]
        assert says in stock["error"][0][1], stock
        scenes = [KERNEL] if fault in SMALL else [KERNEL, MODULE]
        answers = triton_run(("publish",), tmp_path, {"patched": scenes}).answers["patched"]
        assert [answer["result"] for answer in answers] == [[True, True]] * len(scenes), answers
        (warning,) = (warning for answer in answers for warning in answer["warnings"])
        assert says in warning and str(point) in warning
        mend(point)
        answer = triton_run(("publish",), tmp_path, {"mended": [KERNEL]}).answers["mended"][0]
        if fault != "space-for-some":  # which has no more of it
            assert answer["result"] == [True, False] and not answer["warnings"], "it recovers by itself"


@pytest.mark.parametrize("place", ["/proc/nope", "{home}/file", "{home}/file/below"])
def test_directory_that_cannot_be_made_costs_one_warning_and_the_cache(triton_run, tmp_path, place):
    place = place.format(home=tmp_path)
    (tmp_path / "file").write_text("in the way")
    requests = {"place": [(triton_scenes.compile_elsewhere, {"directory": place})]}
    (answer,) = triton_run(("publish",), tmp_path, requests).answers["place"]
    assert answer["result"] == [True, True] and len(answer["warnings"]) == 1 and place in answer["warnings"][0], answer
    assert (tmp_path / "file").read_text() == "in the way"
    assert "error" in triton_run((), tmp_path, requests).answers["place"][0]
