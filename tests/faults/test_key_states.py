"""Code that lies in the cache as the user's own, with private modes and a valid record of other content, never runs.

Whatever this process holds of keys: one that is missing, withdrawn or cannot be read asks no less.
"""

from __future__ import annotations

import os
import shutil

import pytest
from harness.planted import MARKER
from helpers.key_cases import PRIVATE, PUBLIC, expired, revoked
from scenes import kernel_scenes, load_scenes, model_scenes

from faults import hostile
from faults.trojan import Attack, files
from safecache.signing import key_directory, key_files

pytestmark = pytest.mark.xdist_group("key states")


def own(home):
    return farm(home)


def farm(home):
    return {"SAFECACHE_KEY_FILE": str(home.base / "farm")}


def public_only(home):
    key_files.save(str(home.base / "public"), PUBLIC)
    (home.base / "public").chmod(0o644)
    return {"SAFECACHE_KEY_FILE": str(home.base / "public")}


def withdrawn(how):
    def state(home):
        key_directory.add(str(home.keys / "keys"), how(PUBLIC))
        return farm(home)

    state.__name__ = how.__name__
    return state


def another(home):
    """A key of its own, made now."""
    return {}


def unreadable(home):
    path = home.base / "unreadable"
    path.mkdir()
    return {"SAFECACHE_KEY_FILE": str(path)}


def missing(home):
    return {"SAFECACHE_KEY_FILE": str(home.base / "missing")}


def missing_keyring(home):
    return farm(home) | {"SAFECACHE_KEYRING": str(home.base / "missing")}


def no_place_for_a_key(home):
    (home.base / "file").write_text("")
    return {"XDG_CONFIG_HOME": str(home.base / "file")}


CAN_VERIFY = [own, another, public_only]
STATES = [*CAN_VERIFY, withdrawn(revoked), withdrawn(expired), unreadable, missing, missing_keyring, no_place_for_a_key]
EACH = pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
# Trust in private files gives up most; the states differ less where signatures alone count.
STATES_AND_TRUST = [*((state, "private") for state in STATES), *((state, "signed") for state in STATES[1::3])]
EACH_WITH_TRUST = pytest.mark.parametrize(
    ("state", "trust"), STATES_AND_TRUST, ids=lambda value: getattr(value, "__name__", value)
)


def filled_by_a_farm(home, scene):
    """The home, whose cache a farm has filled, and sealed with a private key."""
    key_files.save(str(home.base / "farm"), PRIVATE)
    (home.base / "farm").chmod(0o600)
    answer = home.run(scene, env=farm(home))
    assert answer.ok, answer
    return home


@pytest.fixture(scope="module")
def sealed_by_a_farm(new_home):
    return filled_by_a_farm(new_home(), model_scenes.compile_model)


@pytest.fixture(scope="module")
def modules_of_a_farm(new_home):
    pytest.importorskip("triton")
    return filled_by_a_farm(new_home(), kernel_scenes.build_module)


@pytest.fixture
def attack(home, sealed_by_a_farm):
    shutil.copytree(sealed_by_a_farm.base, home.base, dirs_exist_ok=True, symlinks=True)
    return Attack(home)


def plant(attack, trojan):
    for path in attack.files("*.main.so"):
        shutil.copyfile(trojan, path)
        path.chmod(0o644)
    return {MARKER: str(attack.marker)}


@EACH_WITH_TRUST
def test_planted_library_never_runs(attack, trojan, state, trust):
    answer = attack.home.run(env=state(attack.home) | plant(attack, trojan) | {"SAFECACHE_TRUST": trust})
    assert answer.ok and not attack.ran, answer
    assert trojan.read_bytes() not in [path.read_bytes() for path in attack.files("*.main.so")]


@EACH
def test_planted_library_never_runs_in_strict_mode(attack, trojan, state):
    """Nor is there a hit that goes on without it."""
    answer = attack.home.run(strict=True, env=state(attack.home) | plant(attack, trojan))
    assert not attack.ran and not (answer.ok and answer.hits != (0, 0)), answer


@EACH_WITH_TRUST
def test_planted_module_of_triton_never_runs(home, modules_of_a_farm, trojan, state, trust):
    shutil.copytree(modules_of_a_farm.base, home.base, dirs_exist_ok=True, symlinks=True)
    (module,) = hostile.triton_files(home, "probe*.so")
    shutil.copyfile(trojan, module)
    marker = home.base / "ran"
    answer = home.run(kernel_scenes.build_module, env=state(home) | {MARKER: str(marker), "SAFECACHE_TRUST": trust})
    assert answer.ok and not marker.exists(), answer


@EACH
def test_strict_process_without_a_key_to_verify_with_does_not_start(attack, state):
    answer = attack.home.run(load_scenes.activate, env=state(attack.home), strict=True)
    assert answer.ok is (state in CAN_VERIFY), answer
    assert answer.ok or answer.errors[-1] == "KeyringError", answer


def test_markers_of_torch_are_no_evidence(home, trojan):
    """An empty file says of a probe, or of a header, that it has been loaded before."""
    scene = hostile.probe_of_vector_instructions(home, trojan)
    for path in files(home, "*.so"):
        path.with_name(f"{path.name}.load_ok").touch()
    marker = home.base / "ran"
    for _ in range(2):
        answer = home.run(**scene, env={MARKER: str(marker)})
        assert answer.ok and answer.result is True and not marker.exists(), answer
    assert not answer.warnings and trojan.read_bytes() not in [path.read_bytes() for path in files(home, "*.so")]


def test_marker_beside_a_precompiled_header_is_no_evidence(home, trojan):
    scene = hostile.precompiled_header(home, trojan)
    for path in hostile.headers(home):
        path.with_name(f"{path.name}.gch.load_ok").touch()
    marker = home.base / "ran"
    answer = home.run(**scene, env={MARKER: str(marker)})
    assert answer.ok and not marker.exists(), answer
    again = home.run(**scene, env={MARKER: str(marker)})
    assert again.ok and not marker.exists(), again


def test_marker_that_nothing_attests_has_the_probe_loaded(home):
    """One that is left of a machine where it worked, where it does not: torch would compile what crashes."""
    assert home.run(load_scenes.find_vector_instructions).result is True
    for path in home.cache.glob("??/*.so"):
        path.with_name(f"{path.name}.load_ok").unlink(missing_ok=True)
        path.with_name(f"{path.name}.load_ok").touch()
    for path in home.cache.glob(".safecache/records/*/*"):
        if os.path.getsize(path) and b"load_ok" in path.read_bytes():
            path.unlink()
    answer = home.run(load_scenes.find_vector_instructions)
    assert answer.ok and answer.result is True, answer
    assert not home.run(load_scenes.find_vector_instructions).warnings
