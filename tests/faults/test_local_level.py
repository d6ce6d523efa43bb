"""A node-local tier before a cache that nodes share: each node warm from what another has compiled, and by itself then."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess

import pytest
from conftest import WARM, needs_root
from scenes import model_scenes

from faults.damage import truncate_by_one

pytestmark = pytest.mark.default_release

BUILDS = model_scenes.compile_and_count_builds


class Nodes:
    """Several nodes with one shared cache, and a fast directory each."""

    def __init__(self, home):
        self.home, self.shared = home, home.cache

    def local(self, name):
        """Where the local tier of the node lies, once it has one."""
        (place,) = (self.home.base / name).glob("safecache-local-*/*")
        return place

    def run(self, name, what=BUILDS, **how):
        environment = {"SAFECACHE_LOCAL": str(self.home.base / name)} | how.pop("env", {})
        return self.home.run(what, env=environment, **how)


@pytest.fixture
def nodes(home):
    return Nodes(home)


@pytest.fixture
def filled(home, warm_template):
    """The shared cache holds what a node has compiled."""
    nodes = Nodes(home)
    home.environment["XDG_CONFIG_HOME"] = str(warm_template.base / "config")
    shutil.copytree(warm_template.cache, nodes.shared, symlinks=True)
    return nodes


def is_cold(answer):
    return answer.ok and answer.hits == (0, 0) and answer.result["builds"] == 1


def is_warm(answer):
    return answer.ok and answer.hits == WARM and answer.result["builds"] == 0


def kept(root):
    """What another process may take from a cache, by its path there; locks, stamps and what tells of lookups aside."""
    found = (path for path in root.rglob("*") if path.is_file() and path.suffix != ".lock")
    found = (path for path in found if not {"journal", "keys"} & {*path.parts})
    return {str(path.relative_to(root)): path.read_bytes() for path in found}


def test_what_one_node_compiles_another_has_and_keeps(nodes):
    cold = nodes.run("a")
    assert is_cold(cold) and not cold.warnings, cold
    assert kept(nodes.shared) == kept(nodes.local("a"))
    assert len(nodes.home.aot_entries) == 1 and len(nodes.home.fx_entries) == 2
    before = kept(nodes.shared)

    warm = nodes.run("b")
    assert is_warm(warm) and not warm.warnings and warm.stats == {"verified": 3}, warm
    assert kept(nodes.shared) == before
    assert {name for name in before if not name.endswith((".cpp", ".c"))} <= set(kept(nodes.local("b"))), (
        "all is copied"
    )

    nodes.shared.rename(nodes.home.base / "unmounted")
    again = nodes.run("b", strict=True)
    assert is_warm(again) and not again.warnings and not nodes.shared.exists(), again


def test_stock_torch_reads_the_shared_level(nodes):
    nodes.run("a")
    stock = nodes.home.run(BUILDS, stock=True)
    assert is_warm(stock) and not stock.torch_warnings, stock


def test_node_without_a_local_level_shares_with_those_that_have_one(nodes):
    assert is_cold(nodes.home.run(BUILDS))
    assert is_warm(nodes.run("a")) and is_warm(nodes.home.run(BUILDS, strict=True))


def test_local_level_is_for_this_user_alone_whatever_the_umask(filled):
    answer = filled.run("a", umask=0)
    assert is_warm(answer) and not answer.warnings, answer
    for directory in (filled.local("a"), filled.local("a").parent):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_two_shared_caches_have_a_local_level_each(filled):
    other = filled.home.base / "other"
    shutil.copytree(filled.shared, other, symlinks=True)
    assert is_warm(filled.run("a")) and is_warm(filled.run("a", env={"TORCHINDUCTOR_CACHE_DIR": str(other)}))
    places = [path.name for path in (filled.home.base / "a").glob("safecache-local-*/*")]
    assert len(places) == 2 and any("-other-" in name for name in places), places


def test_unreadable_shared_level_costs_one_warning_and_the_local_one_serves_on(filled):
    assert is_warm(filled.run("a"))
    filled.shared.chmod(0)
    warm = filled.run("a", unprivileged=True)
    assert is_warm(warm) and not warm.warnings, warm
    cold = filled.run("b", unprivileged=True)
    assert is_cold(cold) and len(cold.warnings) == 1, cold
    assert str(filled.shared) in cold.warnings[0] and "Permission denied" in cold.warnings[0], cold
    again = filled.run("b", unprivileged=True)
    assert is_warm(again) and not again.warnings, again


def test_unreadable_shared_level_is_an_error_in_strict_mode(filled):
    filled.shared.chmod(0)
    answer = filled.run("a", unprivileged=True, strict=True)
    assert "CacheWriteError" in answer.errors and "Permission denied" in str(answer.messages), answer


@needs_root
@pytest.mark.parametrize("fault", ["full", "read-only"])
def test_shared_level_that_takes_nothing_costs_one_warning_and_the_local_one_serves_on(nodes, fault):
    nodes.shared.mkdir()
    says = {"full": "No space left", "read-only": "Read-only"}[fault]
    options = {"full": "size=64k", "read-only": "ro"}[fault]
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"mode=755,{options}", "none", str(nodes.shared)], check=True)
    try:
        cold = nodes.run("a")
        assert is_cold(cold) and len(cold.warnings) == 1 and says in cold.warnings[0], cold
        warm = nodes.run("a")
        assert is_warm(warm) and not warm.warnings, warm
        strict = nodes.run("b", strict=True)
        assert "CacheWriteError" in strict.errors and says in str(strict.messages), strict
    finally:
        subprocess.run(["umount", str(nodes.shared)], check=True)


def file_in_the_way(place):
    place.write_text("mine")


def of_another_user(place):
    own = place / f"safecache-local-{os.geteuid()}"
    own.mkdir(parents=True)
    os.chown(own, 12345, 12345)


def others_can_write(place):
    place.mkdir()
    place.chmod(0o777)


@needs_root
@pytest.mark.parametrize("fault", [file_in_the_way, of_another_user, others_can_write])
def test_local_level_that_cannot_be_used_costs_one_warning_and_the_shared_one_serves(filled, fault):
    fault(filled.home.base / "a")
    answer = filled.run("a")
    assert is_warm(answer) and len(answer.warnings) == 1, answer
    assert "local tier" in answer.warnings[0] and "SAFECACHE_TIERS" in answer.warnings[0], answer
    shutil.rmtree(filled.shared)
    assert is_cold(filled.run("a")) and is_warm(filled.run("b")), "it is written too"
    strict = filled.run("a", strict=True)
    assert "CacheWriteError" in strict.errors, strict


@needs_root
def test_local_level_that_is_full_costs_one_warning_and_the_shared_one_serves(filled):
    local = filled.home.base / "a"
    local.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755,size=32k", "none", str(local)], check=True)
    try:
        cold = filled.run("a", env={"TORCHINDUCTOR_CACHE_DIR": str(filled.home.base / "empty")})
        assert is_cold(cold) and len(cold.warnings) == 1 and "No space left" in cold.warnings[0], cold
    finally:
        subprocess.run(["umount", str(local)], check=True)
    assert is_warm(filled.run("b", env={"TORCHINDUCTOR_CACHE_DIR": str(filled.home.base / "empty")}))


@pytest.mark.parametrize("kind", ["entries", "libraries"])
def test_what_is_damaged_in_the_shared_level_is_made_anew_there_too(filled, kind):
    home = filled.home
    paths = home.aot_entries + home.fx_entries if kind == "entries" else sorted(filled.shared.glob("??/*.so"))
    assert paths
    for path in paths:
        truncate_by_one(path)
    answer = filled.run("a")
    assert answer.ok and answer.warnings, answer
    assert answer.result["builds"] == (0 if kind == "entries" else 1), answer
    for name in ("a", "b", "c"):
        healed = filled.run(name, strict=True)
        assert is_warm(healed), healed


@pytest.mark.parametrize("kind", ["entries", "libraries"])
def test_what_nobody_has_sealed_in_the_shared_level_is_not_used(filled, kind):
    if kind == "entries":
        filled.home.environment["XDG_CONFIG_HOME"] = str(filled.home.base / "config")  # another key
    else:
        shutil.rmtree(filled.shared / ".safecache")
    answer = filled.run("a")
    assert answer.ok and answer.result["builds"] == 1 and answer.warnings, answer
    assert answer.hits == ((0, 0) if kind == "entries" else WARM), answer
    assert is_warm(filled.run("a", strict=True))


def test_keys_are_those_of_stock_torch(nodes):
    stock = nodes.home.run(model_scenes.keys_computed, stock=True)
    shutil.rmtree(nodes.shared)
    ours = nodes.run("a", model_scenes.keys_computed)
    assert ours.ok and len(ours.result) == 3 and ours.result == stock.result


def test_local_level_comes_before_the_shared_one(filled):
    assert is_warm(filled.run("a"))
    for path in filled.home.aot_entries + filled.home.fx_entries:
        truncate_by_one(path)
    answer = filled.run("a", strict=True)
    assert is_warm(answer) and not answer.warnings, answer
