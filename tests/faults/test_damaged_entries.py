"""A damaged entry is never served, never crashes or hangs a compile, and is healed by the next save."""

from __future__ import annotations

import pytest
from conftest import WARM, needs_root
from scenes import model_scenes

from faults import damage

KINDS = ["aot", "fx"]


def damaged(home, kind):
    """An entry; for FX graphs all of them, since each is asked for."""
    return home.entries(kind)[: 1 if kind == "aot" else None]


def damage_one(home, kind, how):
    for path in damaged(home, kind):
        how(path)


# Both kinds are read alike: of graphs, whose misses compile all anew, one damage of each sort.
OF_GRAPHS = [
    damage.truncate_to_half,
    damage.zero_tail,
    damage.swollen,
    damage.flip_in_payload,
    damage.flip_in_tag,
    damage.fifo,
    damage.link_to_itself_elsewhere,
    damage.removed,
    damage.unknown_class,
    damage.entry_of_another_kind,
    damage.moved_to_another_key,
]
QUARANTINED = {
    damage.truncate_to_half,
    damage.flip_in_payload,
    damage.entry_of_another_kind,
    damage.moved_to_another_key,
}
BOTH = [*(("aot", how) for how in damage.DAMAGE), *(("fx", how) for how in OF_GRAPHS)]


@pytest.mark.parametrize(("kind", "how"), BOTH, ids=lambda value: getattr(value, "__name__", value))
def test_damaged_entry_is_a_miss_that_is_said_once_and_heals(warm, kind, how):
    spoiled = damaged(warm, kind)
    damage_one(warm, kind, how)
    bad = sorted(map(damage.digest, damaged(warm, kind))) if how in QUARANTINED else []
    first = warm.run()
    assert first.ok, first
    assert first.result["aot"]["hit"] == 0, first
    assert first.result["aot"]["saved"] == 1, first
    assert (first.result["fx"]["hit"] == 2) == (kind == "aot"), first
    assert len(first.warnings) == (how is not damage.removed), first
    assert all(str(warm.cache) in warning for warning in first.warnings)
    assert first.torch_warnings == [], first
    if how in QUARANTINED:
        assert sorted(damage.digest(path) for path in warm.quarantined) == bad, first
        assert first.stats["quarantined"] == len(bad) >= 1
    for path in warm.quarantined:
        assert '"reason"' in path.with_name(path.name + ".json").read_text()
    second = warm.run()
    assert second.ok and second.hits == WARM, second
    assert second.stats.get("verified", 0) >= 3
    assert warm.leftovers == []
    if how in (damage.fifo, damage.swollen):
        for path in spoiled:
            path.unlink()
        second = warm.run()
        assert second.ok and second.hits == WARM, second
    if how not in damage.STAYS - {damage.fifo, damage.swollen}:
        assert second.warnings == [], second


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", [h for h in damage.DAMAGE if h is not damage.removed], ids=lambda how: how.__name__)
def test_strict_mode_names_the_damage_in_an_error(warm, kind, how):
    damage_one(warm, kind, how)
    answer = warm.run(strict=True)
    assert "EntryRefusedError" in answer.errors or "CacheReadError" in answer.errors, answer
    assert any(str(warm.cache) in text for text in answer.messages), answer


@pytest.mark.parametrize("kind", KINDS)
def test_strict_mode_is_not_suppressed(warm, kind):
    damage_one(warm, kind, damage.flip_in_payload)
    answer = warm.run(model_scenes.compile_suppressing, strict=True)
    assert answer.errors[0] == "EntryRefusedError", answer


def test_what_is_no_problem_of_a_cache_is_suppressed_in_strict_mode(home):
    answer = home.run(model_scenes.suppress_the_error_of_a_backend, strict=True)
    assert answer.result == [2, 2], answer


@pytest.mark.parametrize("kind", KINDS)
def test_stray_files_do_not_cost_the_hit(warm, kind):
    entry = warm.entries(kind)[0]
    (entry.parent / ".123.456.tmp").write_bytes(b"left by a killed process")
    (entry.parent / "0-readme.txt").write_text("what is this doing here")
    (entry.parent / "0-directory").mkdir()
    answer = warm.run()
    assert answer.ok and answer.hits == WARM, answer


@needs_root
@pytest.mark.parametrize("kind", KINDS)
def test_foreign_owner_is_a_miss_and_heals(warm, kind):
    for path in warm.entries(kind):
        damage.foreign_owner(path)
    first, second = warm.run(), warm.run()
    assert first.ok and first.result["aot"]["hit"] == 0, first
    assert first.stats["owned by another user"] >= 1 and len(first.warnings) == 1, first
    assert second.ok and second.hits == WARM, second


@pytest.mark.parametrize("kind", KINDS)
def test_unreadable_entry_is_a_miss_and_heals(warm, kind):
    for path in warm.entries(kind):
        path.chmod(0)
    first, second = warm.run(unprivileged=True), warm.run(unprivileged=True)
    assert first.ok and first.result["aot"]["hit"] == 0, first
    assert len(first.warnings) == 1 and "Permission denied" in first.warnings[0], first
    assert second.ok and second.hits == WARM, second


@pytest.mark.parametrize("kind", KINDS)
def test_unreadable_key_directory_is_a_miss_with_one_warning_per_cause(warm, kind):
    for path in warm.entries(kind):
        path.parent.chmod(0)
    answer = warm.run(unprivileged=True)
    assert answer.ok and answer.result["aot"]["hit"] == 0, answer
    assert 1 <= len(answer.warnings) <= 2, answer  # not readable; and then not writable
    assert answer.torch_warnings == [], answer


@pytest.mark.parametrize("kind", KINDS)
def test_unreadable_entry_is_an_error_in_strict_mode(warm, kind):
    for path in warm.entries(kind):
        path.chmod(0)
    answer = warm.run(strict=True, unprivileged=True)
    assert "CacheReadError" in answer.errors, answer


def test_entry_that_verifies_but_is_no_entry_is_refused(warm):
    """A pickle of the wrong type under a good seal, as `adopt` could make one."""
    import pickle

    from safecache.places.layout import name_entry
    from safecache.reporting.kinds import Kind
    from safecache.signing import keyring, seal

    key = keyring.load(None, str(warm.base / "config")).signing
    for path in warm.entries("fx"):
        sealed = seal.attach(pickle.dumps({"guards_expr": None}), Kind.FX_ENTRY, path.parent.name, key, {})
        path.unlink()
        (path.parent / name_entry(sealed)).write_bytes(sealed)
    first, second = warm.run(), warm.run()
    assert first.ok and first.stats["wrong type"] == 2, first
    assert second.ok and second.hits == WARM, second


def test_entry_of_a_hit_whose_graph_is_gone_recompiles_where_torch_is_strict(warm):
    warm.run(model_scenes.compile_model, strict_autograd_cache=True)
    for path in warm.entries("fx"):
        path.unlink()
    first = warm.run(model_scenes.compile_model, strict_autograd_cache=True)
    second = warm.run(model_scenes.compile_model, strict_autograd_cache=True)
    assert first.ok and (first.result["aot"]["hit"], first.result["aot"]["saved"]) == (0, 1), first
    assert first.result["aot"]["bypass"] == 0 and first.stats["missing entry"] == 1, first
    assert second.ok and second.hits == WARM, second
    assert warm.run(model_scenes.compile_model, stock=True, strict_autograd_cache=True).ok, "stock hits what was healed"
