"""What may be unpickled where torch reads a file by itself, and which names may be joined to a directory."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import pytest

from safecache import compiles
from safecache.entries import artifacts
from safecache.errors import EntryRefusedError
from safecache.places.refs import Ref
from safecache.ports import plugs
from safecache.reporting.kinds import Kind

VALUE = {"graph": [1, 2, 3]}
CONTENT = pickle.dumps(VALUE)


def unpickle(content=CONTENT):
    return artifacts.unpickle(content, lambda: pickle.loads(content))


def test_anything_is_unpickled_outside_of_a_load():
    assert unpickle() == VALUE and compiles.current.pinned is None


def test_verified_bytes_are_unpickled():
    with compiles.override_scope(pinned=(Kind.PGO_STATE, CONTENT)):
        assert compiles.current.pinned and unpickle() == VALUE


@pytest.mark.parametrize("verified", [b"", CONTENT + b" ", CONTENT[:-1]], ids=["no-file", "longer", "shorter"])
def test_file_replaced_after_it_was_verified_is_refused(verified):
    with (
        compiles.override_scope(pinned=(Kind.PGO_STATE, verified)),
        pytest.raises(EntryRefusedError, match="replaced while it was read"),
    ):
        unpickle()


def test_what_verified_bytes_unpickle_in_turn_came_with_them():
    with compiles.override_scope(pinned=(Kind.PGO_STATE, CONTENT)):
        assert artifacts.unpickle(CONTENT, lambda: unpickle(pickle.dumps(7))) == 7


def test_a_load_that_unpickled_nothing_leaves_nothing_behind():
    with compiles.override_scope(pinned=(Kind.PGO_STATE, CONTENT)):
        pass
    assert unpickle(pickle.dumps(7)) == 7


def test_a_users_own_file_is_in_no_tier(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(plugs, "tiers", SimpleNamespace(find_candidates=lambda ref: asked.append(ref) or ()))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    ref = Ref(Kind.DYNAMO_PACKAGE, "a", str(tmp_path / "cache"))
    assert artifacts.read(ref._replace(root=""), str(tmp_path / "mine" / "a" / "entry")) == b"" and not asked
    assert artifacts.read(ref, ref.path) == b"" and asked == [ref]


@pytest.mark.parametrize("name", ["a", "a.b", "a..b", "ünïcode", "-"])
def test_plain_name(name):
    assert artifacts.is_plain(name)


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a/b", "/a", "../a", "a/", "a\0"])
def test_name_that_is_not_plain(name):
    assert not artifacts.is_plain(name)


@pytest.mark.parametrize("name", ["c4x_-.best_config", "0.best_config"])
def test_name_of_an_autotuning_result(name):
    assert artifacts.is_autotuning_name(name)


@pytest.mark.parametrize(
    "name",
    ["", "x", "x.py", ".best_config", "a/b.best_config", "x..y.best_config", "x.best_config\n", "x.best_config.py"],
)
def test_name_of_no_autotuning_result(name):
    assert not artifacts.is_autotuning_name(name)


@pytest.mark.parametrize("strict", [0, 1], ids=["default", "strict"])
def test_refusal_of_what_the_program_has_named_is_caught_where_torchs_own_error_is(settings, strict):
    settings(SAFECACHE_STRICT=strict)
    with pytest.raises(RuntimeError, match="no seal") as caught:
        artifacts.require(Kind.AOT_FUNCTION, b"bytes")
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), EntryRefusedError)


def test_what_is_no_refusal_keeps_its_type():
    with pytest.raises(FileNotFoundError), artifacts.raise_on_refusal():
        raise FileNotFoundError(2, "gone")
