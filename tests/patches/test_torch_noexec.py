"""The patch noexec-guidance: an error says which mount is noexec, which variable moves it, and what stock torch said."""

from __future__ import annotations

import subprocess

import pytest
from conftest import needs_root
from faults.conftest import refused, shared_object  # noqa: F401  fixtures
from scenes import load_scenes

from patches import loading_scenes

REFUSED = "failed to map segment from shared object"
SITES = ["inductor", "inductor-python", "cutlass", "aot", "aot-autograd"]


@needs_root
@pytest.mark.parametrize("site", SITES)
def test_error_names_file_mount_and_remedy(home, stock, refused, site):  # noqa: F811
    arguments = {"site": site, "path": str(refused)}
    theirs = stock.run(load_scenes.load_shared_object, env={"TMPDIR": "/var/tmp"}, **arguments)
    ours = home.run(load_scenes.load_shared_object, env={"TMPDIR": "/var/tmp"}, **arguments)
    assert theirs.error in ("OSError", "RuntimeError") and ours.error == theirs.error, (ours, theirs)
    text = ours.messages[0]
    assert text.startswith(f"{refused}: {REFUSED}. It lies on {refused.parent}, which is mounted noexec"), text
    assert "TORCHINDUCTOR_CACHE_DIR=" in text and f"mount -o remount,exec {refused.parent}" in text
    assert str(refused.parent) not in theirs.messages[0].replace(str(refused), ""), "stock torch does not know"
    assert ours.messages[1] == theirs.messages[0], "the original is the cause"


@needs_root
def test_package_that_is_unpacked_to_a_noexec_mount(home, stock, shared_object):  # noqa: F811
    arguments = {"path": "/tmp/package.pt2", "library": str(shared_object), "env": {"TMPDIR": "/tmp"}}
    theirs = stock.run(load_scenes.load_package, **arguments)
    ours = home.run(load_scenes.load_package, **arguments)
    assert theirs.error == ours.error == "RuntimeError" and REFUSED in theirs.messages[0], (ours, theirs)
    text = ours.messages[0]
    assert "It lies on /tmp, which is mounted noexec" in text and "mount -o remount,exec /tmp" in text, ours
    moves = tuple(map(int, home.zygote.torch.split(".")[:2])) >= (2, 13)
    assert ("TMPDIR=" in text) is moves, "torch before 2.13 unpacks to /tmp whatever that says"


@pytest.mark.parametrize("site", SITES)
def test_any_other_error_is_raised_as_it_is(home, stock, site):
    path = home.base / "damaged.so"
    path.write_bytes(b"no library")
    theirs = stock.run(load_scenes.load_shared_object, site=site, path=str(path))
    ours = home.run(load_scenes.load_shared_object, site=site, path=str(path))
    assert theirs.error and ours.error == theirs.error and ours.messages == theirs.messages, (ours, theirs)


@needs_root
def test_refusal_for_another_reason_is_raised_as_it_is(home, refused):  # noqa: F811
    subprocess.run(["mount", "-o", "remount,exec", str(refused.parent)], check=True)
    answer = home.run(loading_scenes.refuse, path=str(refused))
    assert answer.error == "OSError" and answer.messages == [f"{refused}: {REFUSED}"], answer


@pytest.mark.parametrize("site", ["inductor", "cutlass"])
def test_library_that_can_be_loaded_is(home, shared_object, site):  # noqa: F811
    assert home.run(load_scenes.load_shared_object, site=site, path=str(shared_object)).ok
