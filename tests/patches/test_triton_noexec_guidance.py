"""A Triton whose sources have the patch ``noexec-guidance``: the error that a noexec mount causes says so."""

from __future__ import annotations

import contextlib
import subprocess

import pytest
from conftest import TESTS, needs_root
from faults.small_disks import mounted
from scenes import kernel_scenes

from patches import triton_scenes
from patches.conftest import needs_triton

pytestmark = [needs_triton, needs_root]
REFUSED = "failed to map segment from shared object"
SAID = "and that is mounted noexec"
NAME = "noexec-guidance"
ONE = pytest.mark.parametrize("point", ["file system"], indirect=True)
WITH_SAFECACHE = f"""
import json, sys
sys.path.append({str(TESTS)!r})
import safecache
from scenes.kernel_scenes import build_module
from triton.runtime import build
assert build._safecache_noexec_guidance and safecache.stats() == {{}}
try:
    build_module()
except ImportError as error:
    print(json.dumps([str(error), str(error.__cause__)]))
"""


@pytest.fixture(params=["file system", "within another", "bind mount"])
def point(tmp_path, request):
    """Where the cache of a home lies: a noexec mount, of a file system of its own or of a directory on itself."""
    point = tmp_path / "home" / "triton"
    outer = mounted(point.parent, "noexec,size=50m") if request.param == "within another" else contextlib.nullcontext()
    with outer:
        point.parent.mkdir(exist_ok=True)
        with bound(point) if request.param == "bind mount" else mounted(point, "noexec,size=10m"):
            yield point


@contextlib.contextmanager
def bound(point):
    point.mkdir()
    subprocess.run(["mount", "--bind", str(point), str(point)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,noexec", str(point)], check=True)
        yield
    finally:
        subprocess.run(["umount", str(point)], check=True)


def test_error_is_of_the_same_type_and_names_mount_and_remedy(triton_run, point):
    requests = {"build": [(kernel_scenes.build_module, {})] * 2}  # which is there the second time
    stock = triton_run((), point.parent, requests).answers["build"]
    for patched, plain in zip(triton_run((NAME,), point.parent, requests).answers["build"], stock, strict=True):
        (type_, text), cause = patched["error"]
        assert type_ == "ImportError" and cause == plain["error"][0] and cause[0] == type_
        assert cause[1].endswith(REFUSED) and text.startswith(f"{cause[1]}. It lies on {point}, {SAID}: ")
        assert "export TRITON_CACHE_DIR=" in text


@ONE
def test_safecache_does_not_explain_it_again(patched, point):
    text, cause = patched(NAME).said(WITH_SAFECACHE, point.parent)
    assert text.count(SAID) == 1 and cause.endswith(REFUSED)


@ONE
def test_other_errors_are_those_of_triton(triton_run, tmp_path, point):
    """Also there; and elsewhere the module is loaded."""
    requests = {"load": [(triton_scenes.load_garbage, {"directory": str(where)}) for where in (point, tmp_path)]}
    stock = triton_run((), point.parent, requests)
    requests["elsewhere"] = [(triton_scenes.build_elsewhere, {"directory": str(tmp_path / "other")})]
    ours = triton_run((NAME,), point.parent, requests)
    assert [said["error"] for said in ours.answers["load"]] == [said["error"] for said in stock.answers["load"]]
    assert [said["error"][0][0] for said in ours.answers["load"]] == ["ImportError"] * 2
    assert ours.result("elsewhere") == [True, False]
