"""A sparse file costs its maker nothing. None of them, under whatever name below a cache, is read, or copied, or fatal."""

from __future__ import annotations

import errno
import json
import os
import pickle
import shutil
import time
from pathlib import Path

import pytest
from helpers import key_cases
from helpers.caches import HOUR, Cache, key
from helpers.fresh import forget_kernels
from helpers.listed import entry, kernel

from safecache.built_code import exec_directory, library_builds, sources, triton_files
from safecache.entries import loading
from safecache.errors import EntryRefusedError, SafecacheError
from safecache.fs import filesystem, opening
from safecache.integrations import standalone_compile
from safecache.places import layout
from safecache.places.layout import CodeFile
from safecache.places.refs import Ref, locate
from safecache.reporting import events, report
from safecache.reporting.kinds import Kind, Reason
from safecache.signing import keyring, provenance, seal, trust
from safecache.signing.keys import Key
from safecache.store import bundles, directories, entry_files, gate, manifests, quarantine
from safecache.upkeep import catalogue, eviction
from safecache.upkeep.audit import find_objection as against_restoring
from safecache.upkeep.audit import list_quarantined as in_quarantine

GIANT = 1 << 40
# All that a command may read to tell of a dozen files; far less than any giant has.
LITTLE = 24 << 20


@pytest.fixture
def cache(tmp_path):
    forget_kernels()
    return Cache(tmp_path / "cache", time.time())


@pytest.fixture(autouse=True)
def read(monkeypatch):
    """The sizes of what was read; a test may not read a giant, whatever comes of it."""
    seen = []

    def counting(call):
        def counted(*arguments):
            content = call(*arguments)
            seen.append(len(content))
            assert sum(seen) < LITTLE, "a giant is read"
            return content

        return counted

    for name in ("read", "pread"):
        monkeypatch.setattr(filesystem, name, counting(getattr(filesystem, name)))
    return seen


def giant(path, size=GIANT, end=b""):
    """What was there, if anything, made into one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.truncate(path, size - len(end))
    with path.open("ab") as file:
        file.write(end)
    return path


def looked_up(cache, path):
    own = path.parent.name
    source = loading.Source(Ref(Kind.AOT_ENTRY, own, str(cache.root)), lambda found: True)
    return [found for found, *_ in loading.look_up_entries(source, local=True, remote=None)]


@pytest.mark.parametrize("trusted", ["signed", "private"])
def test_giant_among_entries_is_passed_over_and_left_or_a_clear_error_in_strict_mode(cache, settings, trusted):
    settings(SAFECACHE_TRUST=trusted)
    path = giant(cache.aot("a", HOUR))
    good = entry(cache, "a", payload=b"\x80\x04N.")
    assert looked_up(cache, good) == [None] and path.exists()
    assert events.read_counters()["too large"] == 1
    good.unlink()
    settings(SAFECACHE_STRICT=1)
    with pytest.raises(SafecacheError, match=r"1\.1 TB"):
        looked_up(cache, path)


def test_entry_that_a_trusted_key_has_sealed_is_read_whatever_its_size(cache, monkeypatch):
    monkeypatch.setattr(Kind.AOT_ENTRY, "proof", Kind.AOT_ENTRY.proof._replace(max_bytes=100))
    payload = b"\x80\x04N." + bytes(100_000)
    path = entry(cache, "a", payload=payload)
    assert entry_files.read_unverified_entry(str(path), 100).startswith(payload)
    assert looked_up(cache, path) == [None] and events.read_counters() == {"verified": 1}
    path.unlink()
    path = entry(cache, "a", payload=payload, by=key_cases.MAC)
    assert looked_up(cache, path) == [] and events.read_counters()["too large"] == 1
    key_cases.put(key_cases.MAC)
    assert looked_up(cache, path) == [None] and events.read_counters()["verified"] == 2


@pytest.mark.parametrize(
    ("by", "says"),
    [(Key.derive(b"s" * 32), "unknown key"), (None, "damaged")],
    ids=["by a stranger", "of a smaller file"],
)
def test_seal_that_is_none_for_its_size_does_not_have_a_giant_read(cache, by, says, settings):
    size = GIANT if by is None else LITTLE * 4
    key_ = by or keyring.current().signing
    sealed = seal.attach(b"payload", Kind.AOT_ENTRY, key("a", "a"), key_, provenance.make_statement(Kind.AOT_ENTRY))
    if by is not None:  # the sizes add up, and the tag is good: by a key that nobody trusts
        sealed = forged(by, key("a", "a"), size)
    path = giant(cache.root / "aotautograd" / key("a", "a") / "entry", size, sealed)
    settings(SAFECACHE_STRICT=1)
    with pytest.raises(SafecacheError, match=f"too large to be read.*{says} {key_.id.hex()}"):
        looked_up(cache, path)


def forged(by, own, size):
    """The end of a file of this size that is sealed as one, but for the digest."""
    statement = {"kind": "aot_autograd", "key": own, "namespace": "default", "provenance": {}}
    body = json.dumps(statement).encode()
    payload_size = size - len(body) - by.algorithm.tag_size - seal._FOOTER.size
    footer = seal._FOOTER.pack(bytes(32), by.id, payload_size, len(body), by.algorithm.number, seal.FORMAT, seal._MAGIC)
    return body + by.make_tag(seal._DOMAIN + footer + body) + footer


def test_giant_in_place_of_a_record_is_as_good_as_none(cache):
    path, *_ = cache.code("a", HOUR)
    giant(cache.root / ".safecache" / "records" / "00" / "x")
    giant(cache.file(cache.root.joinpath(manifests.record_path(CodeFile(str(path), str(cache.root)))), HOUR))
    assert manifests.read_unverified_record(CodeFile(str(path), str(cache.root))) is None


@pytest.mark.parametrize("name", ["source.py", "source.cpp"])
def test_giant_in_place_of_a_source_is_moved_away(cache, name):
    path = giant(cache.root / "ab" / name)
    assert not sources.quarantine_if_changed(str(path), b"generated", str(cache.root))
    assert not path.exists() and events.read_counters() == {"too large": 1}


def test_giant_in_place_of_a_source_that_is_to_run_is_refused(cache):
    path = giant(cache.root / "ab" / "source.py")
    with pytest.raises(SafecacheError, match=r"1\.1 TB"):
        sources.admit(str(path), "key", lambda text: "key")


@pytest.mark.parametrize("trusted", ["signed", "private"])
@pytest.mark.parametrize("sealed", [True, False])
def test_giant_in_place_of_a_library_is_moved_away(cache, settings, sealed, trusted):
    settings(SAFECACHE_TRUST=trusted)
    path = cache.root / "ab" / "code.so"
    cache.file(path, HOUR)
    if sealed:
        gate.attest_file(CodeFile(str(path), str(cache.root)))
        forget_kernels()
    giant(path)
    assert not gate.quarantine_unattested(CodeFile(str(path), str(cache.root)))
    assert not path.exists() and events.read_counters()["too large"] == 1


def test_giant_in_place_of_a_kernels_list_is_moved_away(cache):
    folder = kernel(cache, "k", {"name": "k"})
    path = giant(folder / "__grp__k.json")
    assert triton_files.get_group(str(folder), "k.json") is None and not path.exists()


def test_giant_of_a_group_is_not_read(cache):
    """The record of the list is good, and what it states is not what lies there."""
    folder = cache.root / ("A" * 52)
    folder.mkdir()
    put = {name: triton_files.put(str(folder), name, b"content") for name in ("k.json", "k.cubin")}
    triton_files.put(str(folder), "__grp__k.json", json.dumps({"child_paths": put}).encode())
    forget_kernels()
    assert triton_files.get_group(str(folder), "k.json") is not None
    forget_kernels()
    path = giant(folder / "k.cubin")
    assert triton_files.get_group(str(folder), "k.json") is None and not path.exists()


def test_what_has_become_a_giant_is_not_read_to_be_moved_away(cache):
    path = giant(cache.aot("a", HOUR))
    assert entry_files.quarantine(str(path), str(cache.root), Reason.DAMAGED, b"judged") is None and path.exists()
    assert not quarantine.is_unchanged(str(path), b"judged")


@pytest.mark.parametrize("which", ["entry", "library"])
def test_giant_in_quarantine_is_not_restored(cache, which):
    path = cache.aot("a", HOUR) if which == "entry" else cache.file(cache.root / "ab" / "code.so", HOUR)
    if which == "library":
        gate.attest_file(CodeFile(str(path), str(cache.root)))
    giant(path)
    assert entry_files.quarantine(str(path), str(cache.root), Reason.DAMAGED) is not None
    [item] = in_quarantine([str(cache.root)])
    assert "TB" in str(against_restoring(item))


@pytest.mark.parametrize("command", [("verify",), ("adopt",), ("sign",), ("ls",), ("du",), ("gc", "--max-age", "1d")])
def test_commands_tell_of_a_giant_and_end(cache, run, command):
    """An entry, a list of a kernel's, a record and a library."""
    giant(cache.aot("a", HOUR))
    giant(cache.code("c", HOUR)[1])
    giant(kernel(cache, "k", {"name": "k"}) / "__grp__k.json")
    giant(cache.file(cache.root / "ab" / "other.so", HOUR).parent / "more.o")
    giant(next(path for path in (cache.root / ".safecache" / "records").rglob("*") if path.is_file()))
    os.chmod(cache.root, 0o700)
    said = run(command[0], cache.root, *command[1:])
    assert said.code in (0, 1) and "Traceback" not in said.err, said
    if command[0] in ("verify", "adopt"):
        assert "1.1 TB" in said.out + said.err


def test_entry_of_stock_torch_is_adopted_though_it_is_large(cache, monkeypatch, run):
    monkeypatch.setattr(Kind.AOT_ENTRY, "proof", Kind.AOT_ENTRY.proof._replace(max_bytes=100))
    content = os.urandom(1000)
    path = cache.file(cache.root / "aotautograd" / key("a", "a") / layout.name_entry(content), HOUR, content)
    os.chmod(cache.root, 0o700)
    assert run("adopt", cache.root).code == 0 and not path.exists()
    [sealed] = path.parent.iterdir()
    found = trust.examine(
        entry_files.read_unverified_entry(str(sealed), 100), Kind.AOT_ENTRY, key("a", "a"), str(sealed)
    )
    assert not isinstance(found, report.Refusal)


def test_sweep_does_not_read_a_giant_for_the_graphs_that_it_refers_to(cache):
    giant(cache.aot("a", 9 * HOUR))
    cache.fx("f", 9 * HOUR)
    swept = eviction.sweep(str(cache.root), eviction.Limits(None, None, HOUR), now=cache.now)
    assert swept is not None


@pytest.mark.parametrize("sealed", [True, False])
def test_giant_in_a_lower_layer_is_not_copied(cache, tmp_path, settings, sealed):
    layer = tmp_path / "layer"
    place = layer / "ab" / "code.so"
    place.parent.mkdir(parents=True)
    place.write_bytes(b"code")
    if sealed:
        gate.attest_file(CodeFile(str(place), str(layer)))
        forget_kernels()
    giant(place)
    settings(SAFECACHE_LOWER=layer)
    path = cache.root / "ab" / "code.so"
    assert not bundles.fetch(locate(Kind.NATIVE_CODE, str(path), str(cache.root))) and not path.exists()
    assert events.read_counters()["too large"] == 1


def test_giant_is_not_sent_to_the_shared_level(local, shared):
    path = giant(tmp := shared.parent / "local" / "x" / "code.so")
    place = os.path.join(str(local), "ab", "code.so")
    os.makedirs(os.path.dirname(place), exist_ok=True)
    shutil.move(path, place)
    assert not directories.propagate_file(CodeFile(place)) and not tmp.exists()


def test_giant_is_not_copied_to_where_code_may_run(cache, tmp_path, settings):
    chosen = tmp_path / "exec"
    chosen.mkdir(mode=0o700)
    settings(SAFECACHE_EXEC_DIR=chosen)
    path = giant(cache.root / "ab" / "code.so")
    assert exec_directory.place_executable(str(path)) == str(path)
    assert events.read_counters() == {"unusable exec directory": 1}


def test_copy_that_has_become_a_giant_is_replaced(cache, tmp_path, settings):
    chosen = tmp_path / "exec"
    chosen.mkdir(mode=0o700)
    settings(SAFECACHE_EXEC_DIR=chosen)
    path = cache.file(cache.root / "ab" / "code.so", HOUR, b"code")
    copy = exec_directory.place_executable(str(path))
    os.truncate(copy, GIANT)
    again = exec_directory.place_executable(str(path))
    with open(again, "rb") as file:
        assert file.read(10) == b"code"


def test_signature_of_a_giant_is_told_from_its_end(cache):
    from safecache.upkeep import inventory

    giant(cache.aot("a", HOUR))
    [group] = inventory.take_inventory(str(cache.root)).groups
    assert [found.state for found in catalogue.list_signatures(group)] == ["unsealed"]


def memos(directory):
    """As torch's cache of memoized results, as far as it is asked."""

    class Memos:
        _base_dir = Path(directory)

        def _fpath_from_key(self, key):
            return self._base_dir / key

    return Memos()


def test_giant_among_memoized_results_is_not_given_to_torch_to_read(tmp_path):
    giant(tmp_path / "memo")
    assert standalone_compile.get_cached(lambda key: pytest.fail("read"), memos(tmp_path), ("memo",), {}) is None
    assert events.read_counters() == {"too large": 1}


def test_giant_beside_an_artifact_that_is_unpacked_is_not_read(cache):
    path = giant(cache.fx("a", HOUR))
    verifying = standalone_compile.verifying_pickle(pickle, enabled=lambda: True)
    with open(path, "rb") as file, pytest.raises(EntryRefusedError, match=r"1\.1 TB"):
        verifying.load(file)


def test_giant_in_place_of_a_precompiled_header_is_not_copied(tmp_path, monkeypatch):
    """Where others can write, a build has a copy of its own."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    header = shared / "code.h"
    header.write_bytes(b"// text")
    sources.attest(str(header), b"// text")
    giant(shared / "code.h.gch")
    copy = library_builds._copy_header(str(header))
    assert copy is not None and os.listdir(os.path.dirname(copy)) == ["code.h"]


def test_what_does_not_fit_into_memory_is_an_error_of_reading(tmp_path, monkeypatch):
    """A miss, then, as for all that cannot be read."""
    path = tmp_path / "entry"
    path.write_bytes(b"content")

    def refuse(descriptor, size):
        raise MemoryError

    monkeypatch.setattr(filesystem, "read", refuse)
    with pytest.raises(OSError, match="memory") as caught:
        opening.read_regular(str(path), lambda status: None)
    assert caught.value.errno == errno.ENOMEM
    assert loading.read_unverified(Kind.AOT_ENTRY, str(path)) is None and events.read_counters() == {"unreadable": 1}


def test_file_that_grows_while_it_is_read_is_not_read_beyond_its_bound(tmp_path, monkeypatch):
    path = tmp_path / "entry"
    path.write_bytes(b"content")
    inner = filesystem.read

    def grow(descriptor, size):
        with path.open("ab") as file:
            file.write(bytes(100))
        return inner(descriptor, size)

    monkeypatch.setattr(filesystem, "read", grow)
    assert len(entry_files.read_unverified_entry(str(path), 50)) <= 50
    assert len(entry_files.digest(str(path), 10**6)) == 32
