"""A kernel is found wherever this user's programs have kept it: torch sets TRITON_CACHE_DIR with its first autotuner.

So the same kernel is looked up in Triton's own directory in one process, and below Inductor's cache in the next.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile

import pytest

from built_code.test_triton_files import NAMES, read, write

OWN, INDUCTORS = "home/.triton/cache", "inductor/triton/0"
BOTH_WAYS = pytest.mark.parametrize(("kept", "asked"), [(INDUCTORS, OWN), (OWN, INDUCTORS)], ids=["own", "inductor's"])


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The directory of a kernel in one of the caches; asked there, Triton has or has not its variable."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TRITON_HOME", raising=False)
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))

    def of(cache):
        directory = tmp_path / cache / "KEY"
        directory.mkdir(parents=True, exist_ok=True)
        return str(directory)

    return of


@BOTH_WAYS
def test_kernel_is_found_in_the_other_place(place, kept, asked):
    write(place(kept), "one")
    assert read(place(asked)) == {"one"}
    shutil.rmtree(place(kept))
    assert read(place(asked)) == {"one"}, "it is copied: stock Triton finds it too"


HASHES = ["a" * 64, "b" * 64]
VLLMS = "vllm/torch_compile_cache/torch_aot_compile"
OF_MODELS = [f"{VLLMS}/{each}/{cache}" for each in HASHES for cache in ("inductor_cache/triton/0", "triton_cache")]


@pytest.mark.parametrize("asked", [OWN, *OF_MODELS])
@pytest.mark.parametrize("kept", [OWN, *OF_MODELS])
def test_kernel_is_found_where_another_model_of_vllm_has_kept_it(place, monkeypatch, tmp_path, kept, asked):
    """Both are models of one engine, which draft and check; who comes first differs from start to start."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / VLLMS / HASHES[1] / "inductor_cache"))
    write(place(kept), "one")
    assert read(place(asked)) == {"one"}


def test_directory_chosen_for_vllm_is_the_only_one(place, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / VLLMS / HASHES[1] / "inductor_cache"))
    write(place(OF_MODELS[0]), "one")
    assert read(place("chosen")) is None


@BOTH_WAYS
def test_what_lies_where_it_is_asked_for_comes_first(place, kept, asked):
    write(place(kept), "one")
    write(place(asked), "two")
    assert read(place(asked)) == {"two"}


def plant(directory):
    with open(os.path.join(directory, NAMES[0]), "w", encoding="utf-8") as file:
        file.write("planted")


def unseal(directory):
    shutil.rmtree(os.path.join(os.path.dirname(directory), ".safecache"))


@BOTH_WAYS
@pytest.mark.parametrize("harm", [plant, unseal])
def test_what_is_not_attested_there_is_a_miss(place, kept, asked, harm):
    write(place(kept), "one")
    harm(place(kept))
    assert read(place(asked)) is None


@BOTH_WAYS
def test_stock_tritons_kernels_there_are_no_matter(place, kept, asked, caplog, settings):
    """They were not asked for, so they are no problem of the cache, nor an error in strict mode."""
    settings(SAFECACHE_STRICT="1")
    write(place(kept), "one")
    unseal(place(kept))
    assert read(place(asked)) is None
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_directory_that_a_user_has_chosen_is_the_only_one(place):
    write(place(OWN), "one")
    write(place(INDUCTORS), "one")
    assert read(place("chosen")) is None


def test_kernel_for_another_device_is_not_in_its_place(place):
    write(place(INDUCTORS), "one")
    assert read(place("inductor/triton/1")) is None


def test_machine_without_a_temporary_directory_misses(place, monkeypatch):
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")

    def fails():
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", fails)
    assert read(place(OWN)) is None
