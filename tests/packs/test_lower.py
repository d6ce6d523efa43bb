"""Packs as tiers of a lookup: what a cache lacks is taken from there, verified, and never written back."""

from __future__ import annotations

import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import needs_root
from helpers import filled
from helpers.sealed import flipped

from packs import forged
from safecache import packs as tier
from safecache.errors import CacheReadError, EntryRefusedError
from safecache.packs import archive
from safecache.places.refs import Ref
from safecache.reporting import events
from safecache.reporting.kinds import Count, Kind
from safecache.store import bundles


@pytest.fixture
def use(settings, tmp_path, monkeypatch):
    """Name packs, in a process whose caches are empty."""

    def use(*packs, **more):
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "there"))
        tier._state.reset()
        events._state.reset()
        return settings(SAFECACHE_LOWER=":".join(map(str, packs)), **more)

    return use


def everything(root, triton):
    """Ask for one of each kind, as the places do that look them up."""
    asked = [
        Ref(Kind.FX_ENTRY, filled.GRAPH, str(root)),
        Ref(Kind.KERNEL, filled.KERNEL, str(triton)),
        Ref(Kind.NATIVE_CODE, f"{filled.LIBRARY[1:3]}/{filled.LIBRARY}.so", str(root)),
        Ref(Kind.PGO_STATE, filled.JOB, str(root)),
    ]
    return [bundles.fetch(ref) is not None for ref in asked]


def test_what_is_not_here_is_taken_from_a_pack(use, pack, tmp_path):
    use(pack)
    there, before = tmp_path / "there", pack.read_bytes()
    # Wherever Triton keeps its kernels now.
    assert everything(there, tmp_path / "triton") == [True] * 4
    assert events.read_counters()[Count.PACK_HIT.value] == 4
    assert (tmp_path / "triton" / filled.KERNEL / "k.cubin").read_bytes() == b"a cubin"
    assert bundles.read_verified_files(Ref(Kind.FX_ENTRY, filled.GRAPH, str(there)))
    assert pack.read_bytes() == before


def test_entries_of_a_key_are_taken_once(use, pack, tmp_path):
    """They are looked up again for each set of guards."""
    use(pack)
    there = tmp_path / "there"
    assert everything(there, tmp_path / "triton")[0] and not everything(there, tmp_path / "triton")[0]


def test_the_first_pack_that_has_it_serves(use, pack, cache, run, tmp_path):
    filled.kernel(cache / "triton" / "1", code=b"another cubin")
    run("pack", cache, "-o", tmp_path / "second.safecache")
    use(tmp_path / "second.safecache", pack)
    everything(tmp_path / "there", tmp_path / "triton")
    assert (tmp_path / "triton" / filled.KERNEL / "k.cubin").read_bytes() == b"another cubin"


def test_a_group_that_was_changed_is_not_used_and_the_rest_is(use, pack, caplog, tmp_path):
    found = archive.open_pack(str(pack))
    (graph,) = [group for group in found.groups if group.ref.key == filled.GRAPH]
    begin = len(forged.frames(pack.read_bytes())[0]) + graph.at
    pack.write_bytes(flipped(pack.read_bytes(), (begin + graph.stored // 2) * 8))
    use(pack)
    assert everything(tmp_path / "there", tmp_path / "triton") == [False, True, True, True]
    (warning,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert str(pack) in warning.message and filled.GRAPH in warning.message


@pytest.mark.parametrize("how", ["cut", "strangers", "missing", "directory"])
def test_a_pack_that_cannot_be_used_is_named_once_and_done_without(how, use, pack, caplog, run, tmp_path):
    if how == "cut":
        pack.write_bytes(pack.read_bytes()[:-1])
    elif how == "strangers":
        use(pack, XDG_CONFIG_HOME=tmp_path / "another home")
        archive.keyring.renew()
    else:
        pack.unlink()
        if how == "directory":
            pack.mkdir()
    use(pack)
    for _ in range(2):
        assert everything(tmp_path / "there", tmp_path / "triton") == [False] * 4
    (warning,) = [record for record in caplog.records if record.levelname == "WARNING" and "pack" in record.message]
    assert str(pack) in warning.message


def test_without_zstandard_it_says_what_to_install(use, pack, caplog, tmp_path, monkeypatch):
    use(pack)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    assert everything(tmp_path / "there", tmp_path / "triton") == [False] * 4
    (warning,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "pip install 'safecache[pack]'" in warning.message


def test_strict_mode_raises(use, pack, tmp_path):
    pack.write_bytes(pack.read_bytes()[:-1])
    use(pack, SAFECACHE_STRICT="1")
    for _ in range(2):
        with pytest.raises(EntryRefusedError, match=str(pack)):
            everything(tmp_path / "there", tmp_path / "triton")


def test_threads_that_look_up_at_once_open_a_pack_once(use, pack, tmp_path, monkeypatch):
    is_asked, may_open, stock = threading.Event(), threading.Event(), archive.open_pack

    def open_late(path):
        is_asked.set()
        assert may_open.wait(60)
        return stock(path)

    monkeypatch.setattr(archive, "open_pack", open_late)
    use(pack)
    kinds = {Kind.FX_ENTRY: filled.GRAPH, Kind.KERNEL: filled.KERNEL}
    with ThreadPoolExecutor() as threads:
        asked = [threads.submit(bundles.fetch, Ref(*kind, str(tmp_path / "there"))) for kind in kinds.items()]
        assert is_asked.wait(60)
        time.sleep(0.1)  # for the second to come to a pack that is not open yet
        may_open.set()
        assert None not in [each.result(60) for each in asked]


def test_a_cache_that_cannot_be_written_is_named(use, pack, caplog, tmp_path):
    use(pack)
    (tmp_path / "there").write_bytes(b"a file")
    assert not everything(tmp_path / "there", tmp_path / "triton")[0]
    assert any("from the pack" in record.message and "could not copy" in record.message for record in caplog.records)


def exchange(path, how):
    """Put something else in the pack's place, as a rotation does."""
    if how == "rewritten":
        path.write_bytes(b"\0" * path.stat().st_size)
        return
    path.unlink()
    if how == "another owner's":
        path.write_bytes(b"theirs")
        os.chown(path, 65534, 65534)
    elif how != "gone":
        {"FIFO": os.mkfifo, "directory": os.mkdir}[how](path)


@pytest.mark.parametrize("how", ["FIFO", "directory", "gone", pytest.param("another owner's", marks=needs_root)])
def test_a_pack_that_is_exchanged_in_use_is_used_on(use, pack, tmp_path, caplog, how):
    use(pack, SAFECACHE_STRICT="1")
    assert bundles.fetch(Ref(Kind.FX_ENTRY, filled.GRAPH, str(tmp_path / "there")))
    exchange(pack, how)
    assert everything(tmp_path / "there", tmp_path / "triton")[1:] == [True] * 3
    assert not caplog.messages


def test_a_pack_that_is_rewritten_in_use_is_used_no_more(use, pack, tmp_path, caplog):
    use(pack)
    assert bundles.fetch(Ref(Kind.FX_ENTRY, filled.GRAPH, str(tmp_path / "there")))
    exchange(pack, "rewritten")
    assert everything(tmp_path / "there", tmp_path / "triton")[1:] == [False] * 3
    assert sum(str(pack) in record.message for record in caplog.records if record.levelname == "WARNING") == 1


ERRORS = [RuntimeError("it broke"), UnicodeEncodeError("utf-8", "\ud800", 0, 1, "no"), OverflowError("2^80")]
ERRORS += [MemoryError(), RecursionError("too deep")]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("name", ["open_pack", "Pack.read"])
def test_whatever_fails_in_a_pack_is_said_once_and_compiled(use, pack, tmp_path, monkeypatch, caplog, name, error):
    def fail(*_):
        raise error

    monkeypatch.setattr(f"safecache.packs.archive.{name}", fail)
    use(pack)
    assert everything(tmp_path / "there", tmp_path / "triton") == [False] * 4
    (line,) = caplog.messages
    assert str(pack) in line and type(error).__name__ in line
    use(pack, SAFECACHE_STRICT="1")
    with pytest.raises(CacheReadError) as caught:
        everything(tmp_path / "there", tmp_path / "triton")
    assert caught.value.__cause__ is error


def test_directories_and_packs_may_be_mixed(use, pack, tmp_path):
    chosen = use(tmp_path / "layer", pack)
    assert chosen.layers == (str(tmp_path / "layer"),) and chosen.packs == (str(pack),)
    hidden = use("/cache/.safecache")
    assert hidden.packs == ()
