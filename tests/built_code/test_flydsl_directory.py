"""FlyDSL reads its cache by itself, in a format of its own: it has one of this process tree alone."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest

from safecache.fs import ownership
from safecache.integrations import flydsl
from safecache.settings import config

NAME = "FLYDSL_RUNTIME_CACHE_DIR"


@pytest.fixture
def configure(tmp_path, monkeypatch):
    """Torch's own function, under the hook."""
    for name in (NAME, "_SAFECACHE_FLYDSL_RUNTIME_CACHE_DIR"):
        monkeypatch.setenv(name, "")  # so that what is set here is undone
        monkeypatch.delenv(name)
    module = SimpleNamespace(_cache_dir=lambda: tmp_path / "inductor" / "flydsl_compile_cache")
    monkeypatch.setitem(sys.modules, "torch._inductor.runtime.flydsl_cache", module)

    def stock():
        return os.environ.setdefault(NAME, str(module._cache_dir()))

    return lambda: flydsl.flydsl_dir(stock, None, (), {})


@pytest.mark.parametrize("named", [True, False])
def test_neither_the_cache_nor_a_directory_that_the_user_names_is_read(configure, tmp_path, monkeypatch, named):
    if named:
        monkeypatch.setenv(NAME, str(tmp_path / "own"))
    place = configure()
    assert not place.startswith(str(tmp_path / "inductor")) and place != str(tmp_path / "own")
    assert os.environ[NAME] == place and ownership.find_exposure(os.path.dirname(place)) is None
    assert not os.path.exists(place), "it is empty"


def test_compile_worker_has_that_of_its_parent(configure, monkeypatch, tmp_path):
    place = configure()
    monkeypatch.setattr(flydsl.private_directory, "get_process_directory", lambda: str(tmp_path / "of-worker"))
    assert configure() == place


def test_directory_of_a_parent_that_others_have_made_since_is_not_taken(configure, tmp_path):
    config.set_library_directory(NAME, str(tmp_path / "theirs" / "cache"))
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs").chmod(0o777)
    assert not configure().startswith(str(tmp_path / "theirs"))


def test_private_directory_is_used_where_the_user_trusts_it(configure, tmp_path, settings):
    settings(SAFECACHE_TRUST="private")
    assert configure() == str(tmp_path / "inductor" / "flydsl_compile_cache")
