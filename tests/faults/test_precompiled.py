"""torch.compiler.precompile: the source and the cache that capture writes are those that load executes, or nothing is."""

from __future__ import annotations

import pytest
from scenes import sink_scenes

from faults import damage

pytest.importorskip("torch._precompile", reason="torch 2.14 is the first that has it")
STRICTNESS = pytest.mark.parametrize("strict", [False, True], ids=["default", "strict"])


@pytest.fixture
def pair(home):
    """What capture has written: the source and the cache."""

    def write(**how):
        found = home.base / "model.py", home.base / "model.cache"
        answer = home.run(sink_scenes.precompile, source=str(found[0]), cache=str(found[1]), **how)
        assert answer.ok, answer
        return found

    return write


@pytest.fixture
def load(home):
    def load(pair, **how):
        return home.run(sink_scenes.load_precompiled, source=str(pair[0]), cache=str(pair[1]), **how)

    return load


def refused(answer):
    return answer.errors[:1] == ["RefusedArtifactError"]


@STRICTNESS
def test_pair_is_loaded_and_by_stock_torch_too(pair, load, strict):
    found = pair()
    answer = load(found, strict=strict)
    assert answer.ok and answer.result is True and answer.warnings == [], answer
    assert load(found, stock=True).ok


@STRICTNESS
def test_changed_source_is_not_executed(pair, load, tmp_path, strict):
    """With its digest put right in the cache, as anybody can."""
    source, cache = found = pair()
    code = source.read_text() + f"\nopen({str(tmp_path / 'ran')!r}, 'w')\n"
    source.write_text(code)
    rewrite(cache, code)
    assert load(found, stock=True).ok and (tmp_path / "ran").exists()
    (tmp_path / "ran").unlink()
    answer = load(found, strict=strict)
    assert refused(answer) and not (tmp_path / "ran").exists(), answer


def rewrite(cache, code):
    import hashlib
    import io

    import torch

    content = torch.load(io.BytesIO(cache.read_bytes()), weights_only=True)
    content["code_hash"] = hashlib.sha256(code.encode()).hexdigest()
    torch.save(content, cache)


@STRICTNESS
@pytest.mark.parametrize(
    "harm", [damage.flip_in_payload, damage.flip_in_tag, damage.truncate_to_half], ids=lambda f: f.__name__
)
def test_damaged_cache_is_refused(pair, load, harm, strict):
    found = pair()
    harm(found[1])
    assert refused(load(found, strict=strict))


@STRICTNESS
def test_pair_of_stock_torch_is_refused(pair, load, strict):
    answer = load(pair(stock=True), strict=strict)
    assert refused(answer) and "unsealed" in answer.stats, answer


def test_cache_of_another_source_is_refused(pair, load, home):
    """Both are ours."""
    source, cache = pair()
    source.write_text(source.read_text() + "# other\n")
    assert refused(load((source, cache)))
