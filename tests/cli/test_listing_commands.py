"""`ls`: what lies in caches by name, size, age, build and signer, whatever else lies there."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import time
from functools import partial

import pytest
from conftest import needs_root, python
from helpers.caches import DAY, HOUR, Cache, key
from helpers.key_cases import MAC, put, revoked
from helpers.listed import BUILD, GRAPH, entry, kernel

from safecache.explain import key_records
from safecache.explain.key_records import KeyRecord
from safecache.reporting.kinds import Kind
from safecache.signing import keyring
from safecache.signing.keys import Key
from safecache.upkeep import catalogue

OTHER = Key.derive(b"o" * 32)


def test_entries_are_told_with_their_kernels_build_and_signer(cache, listed):
    graph = entry(cache, "g", Kind.FX_ENTRY, GRAPH)
    entry(cache, "a", payload=pickle.dumps(["of", graph.parent.name]))
    aot, fx = sorted(listed()["entries"], key=lambda row: row["kind"])
    assert (aot["kind"], aot["key"], fx["kind"], fx["key"]) == ("aot", key("a", "a"), "fx", key("f", "g"))
    assert aot["name"] == fx["name"] == "triton_poi_fused_add_0 (+1)"
    own = keyring.current().signing
    for row in aot, fx:
        assert (row["torch"], row["triton"], row["gpu"]) == (BUILD["torch"], BUILD["triton"], "sm_90")
        assert row["signers"] == [{"id": own.id.hex(), "name": own.name}] and row["states"] == {"sealed": 1}
    assert fx["bytes"] == graph.stat().st_size and fx["files"] == 1 and fx["paths"] == [str(graph.parent)]


def test_age_is_of_the_making_and_used_of_the_latest_stamp(cache, listed):
    path = entry(cache, "a", age=9 * DAY)
    cache.use(path, HOUR)
    [row] = listed()["entries"]
    stamps = [time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(cache.now - age)) for age in (9 * DAY, HOUR)]
    assert [row["made"], row["used"]] == stamps


def test_kernel_is_told_by_its_own_metadata(cache, listed):
    target = {"backend": "cuda", "arch": 90, "warp_size": 32}
    kernel(cache, "k", {"name": "add_kernel", "target": target, "triton_version": "3.9.0", "num_warps": 4})
    [row] = listed()["entries"]
    told = [row[what] for what in ("name", "kind", "gpu", "triton", "torch", "states")]
    assert told == ["add_kernel", "triton", "sm_90", "3.9.0", "", {"unsealed": 1}]
    assert row["files"] == 6 and row["bytes"] == sum(file.stat().st_size for file in cache.files())


def note_key(root, kind, cache_key, name):
    key_records.remember(KeyRecord(kind, cache_key, name, 0.0, ()), str(root))


def test_entry_that_names_no_kernel_is_told_by_the_record_of_its_key(cache, listed, run):
    for kind in (Kind.AOT_ENTRY, Kind.FX_ENTRY):
        cache_key = entry(cache, "plain", kind).parent.name
        note_key(cache.root, kind, cache_key, f"model.f {kind.word}")
    note_key(cache.root, Kind.FX_ENTRY, entry(cache, "g", Kind.FX_ENTRY, GRAPH).parent.name, "model.g forward")
    folder = cache.kernel("k", HOUR)[0].parent
    for path in folder.glob("__grp__*"):
        path.unlink()
    note_key(folder.parent, Kind.KERNEL, folder.name, "model.add_kernel")
    names = {row["name"] for row in listed()["entries"]}
    assert names == {"model.f aot", "model.f fx", "triton_poi_fused_add_0 (+1)", "model.add_kernel"}
    assert "\nname:        model.f fx\n" in f"\n{run('show', 'model.f fx', '--in', cache.root).out}"


def test_record_that_is_none_of_its_key_names_nothing_and_is_not_obeyed(cache, listed, run):
    own = entry(cache, "a").parent.name
    note_key(cache.root, Kind.AOT_ENTRY, own, "\x1b[2Jmodel " + "f" * 1000)
    assert len(listed()["entries"][0]["name"]) == 300
    said = run("ls", cache.root).out + run("show", own, "--in", cache.root).out
    assert "model" in said and "\x1b" not in said
    [path] = cache.root.rglob("*.json.gz")
    path.rename(path.with_name(f"{key('a', 'b')}.json.gz"))
    entry(cache, "b")
    path.with_name(f"{own}.json.gz").symlink_to(path.with_name(f"{key('a', 'b')}.json.gz"))
    assert [row["name"] for row in listed()["entries"]] == ["", ""]


@pytest.mark.parametrize(
    "target", [{"backend": "hip", "arch": "gfx942"}, {"backend": "xpu", "arch": {"name": 1}}, "cuda", None, 7]
)
def test_target_of_any_backend_is_told_or_left_out(cache, listed, target):
    kernel(cache, "k", {"name": "k", "target": target})
    [row] = listed()["entries"]
    assert row["gpu"] == ("gfx942" if isinstance(target, dict) and target["backend"] == "hip" else "")


HOSTILE = {
    "huge": b'{"name": "' + b"a" * (1 << 20) + b'"}',
    "deep": b"[" * 200_000,
    "digits": b'{"name": ' + b"1" * 10_000 + b"}",
    "list": b"[1, 2]",
    "text": b"\xff\xfe\x00",
    "types": b'{"name": ["x"], "target": {"backend": [], "arch": {}}, "triton_version": {}, "num_warps": []}',
    "empty": b"",
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_kernel_with_metadata_that_is_none_is_told_by_its_file(cache, listed, content):
    kernel(cache, "k", content)
    [row] = listed()["entries"]
    assert (row["name"], row["gpu"]) == ("k", "")


def _link(path):
    path.symlink_to("/etc/passwd")


@pytest.mark.timeout(20, method="signal")  # would hang for ever
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, _link], ids=["fifo", "directory", "link"])
def test_what_is_no_file_is_told_as_that(cache, listed, make):
    folder = kernel(cache, "k", {"name": "other"})
    for path in (folder / "k.json", entry(cache, "a"), cache.code("c", HOUR)[1]):
        path.unlink()
        make(path)
    rows = {row["kind"]: row for row in listed()["entries"]}
    assert rows["triton"]["name"] == "k"
    if make is not os.mkdir:  # a directory holds files, or nothing
        assert rows["aot"]["states"] == {"not a file": 1}
    assert rows["code"]["states"] in ({"compared": 1}, {"not a file": 1})


@pytest.mark.parametrize(
    ("by", "state"), [(OTHER, "unknown key"), (revoked(MAC), "revoked key")], ids=["stranger", "revoked"]
)
def test_what_a_key_says_that_is_not_trusted_is_not_told(cache, listed, by, state):
    put(revoked(MAC))
    entry(cache, "a", by=MAC if by.id == MAC.id else by)
    [row] = listed()["entries"]
    assert (row["states"], row["torch"], row["signers"][0]["id"]) == ({state: 1}, "", by.id.hex())


def test_forged_provenance_is_not_told(cache, listed):
    path = entry(cache, "a")
    cache.file(path, HOUR, path.read_bytes().replace(b"sm_90", b"sm_80"))
    [row] = listed()["entries"]
    assert row["states"] == {"bad seal": 1} and row["gpu"] == ""


def test_signer_is_told_by_the_name_of_its_key(cache, run, listed):
    put(MAC._replace(name="farm"))
    entry(cache, "a", by=MAC)
    assert listed()["entries"][0]["signers"] == [{"id": MAC.id.hex(), "name": "farm"}]
    assert "sealed farm" in run("ls", cache.root).out


def test_code_is_told_by_its_record_and_sources_are_compared(cache, listed):
    cache.code("library", HOUR)
    own = key("c", "source")
    cache.file(cache.root / own[1:3] / f"{own}.py", HOUR, b"def triton_poi_fused_mul_0(): pass")
    rows = {row["key"]: row for row in listed("--kind", "code")["entries"]}
    assert rows[own]["states"] == {"compared": 1} and rows[own]["name"] == "triton_poi_fused_mul_0"
    # Whatever lies in the place of the record.
    assert rows[key("c", "library")]["states"] == {"unsealed": 1}


CPP = """extern "C"  void  kernel(const float* in_ptr0,
                       float* out_ptr0)
{
    out_ptr0[0] = in_ptr0[0] + %d;
}
"""
PYTHON = """
cpp_fused_add_0 = async_compile.cpp_pybinding(['const float*', 'float*'], r'''
#include <torch/csrc/inductor/cpp_prefix.h>
%s''')
"""


def test_cpp_kernel_is_called_what_the_python_around_it_calls_it(cache, listed):
    """The name is nowhere in the C++ itself; nor is another text called so."""
    for name, ending, content in [
        ("py", ".py", PYTHON % (CPP % 1)),
        ("same", ".main.cpp", "\n#include <a>\n" + CPP % 1 + "// glue\n"),
        ("other", ".main.cpp", CPP % 2),
        *(("probe", ending, "") for ending in (".cpp", ".so", ".so.load_ok")),
    ]:
        own = key("c", name)
        cache.file(cache.root / own[1:3] / f"{own}{ending}", HOUR, content.encode())
    names = sorted(row["name"] for row in listed()["entries"])
    assert names == ["", "cpp_fused_add_0", "cpp_fused_add_0", "probe of vector instructions"]


def test_only_what_compiles_use_is_listed_unless_asked(cache, listed):
    for make in (cache.aot, cache.fx, cache.code, cache.kernel, cache.header, cache.quarantined, cache.crash):
        make("x", HOUR)
    cache.file(cache.root / "notes.txt", HOUR, b"12345")
    kinds = {row["kind"] for row in listed()["entries"]}
    assert kinds == {"aot", "fx", "code", "triton", "header"}
    assert listed()["other"] == {"files": 1, "bytes": 5} and listed()["total"] == 5
    assert {row["kind"] for row in listed("--kind", "all")["entries"]} == kinds | {"quarantine", "crash"}
    assert {row["kind"] for row in listed("--kind", "aot", "--kind", "fx")["entries"]} == {"aot", "fx"}


@pytest.mark.parametrize("gone", ["inventory", "signatures"])
def test_what_is_removed_while_it_is_listed_is_no_error(cache, listed, monkeypatch, gone):
    entry(cache, "a")
    kept = entry(cache, "b")
    doomed = cache.root / "aotautograd" / key("a", "a")

    def and_remove(wrapped, *arguments):
        found = wrapped(*arguments)
        shutil.rmtree(doomed, ignore_errors=True)
        return found

    if gone == "inventory":
        monkeypatch.setattr(
            catalogue.inventory, "take_inventory", partial(and_remove, catalogue.inventory.take_inventory)
        )
        assert [row["paths"] for row in listed()["entries"]] == [[str(kept.parent)]]
    else:
        monkeypatch.setattr(
            catalogue.opening, "read_end", partial(and_remove_before, doomed, catalogue.opening.read_end)
        )
        states = {row["key"]: row["states"] for row in listed()["entries"]}
        assert states == {key("a", "a"): {}, key("a", "b"): {"sealed": 1}}


def and_remove_before(doomed, wrapped, path, *arguments, **named):
    if path.startswith(str(doomed)):
        shutil.rmtree(doomed)
    return wrapped(path, *arguments, **named)


def test_listing_uses_nothing(cache, run):
    path = entry(cache, "a", age=30 * DAY)
    folder = kernel(cache, "k", {"name": "k"}, age=30 * DAY)
    stamps = [file.stat().st_mtime_ns for file in (path, *folder.iterdir())]
    assert run("ls", cache.root).code == 0 and run("show", key("a", "a"), "--in", cache.root).code == 0
    assert [file.stat().st_mtime_ns for file in (path, *folder.iterdir())] == stamps


# With all that it needs imported while it may.
AS_NOBODY = """
import os, sys
from safecache.cli import ls, main
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
sys.exit(main.main(["ls", "--json", sys.argv[1]]))
"""


@needs_root
@pytest.mark.parametrize("mode", [0o700, 0o744, 0o711], ids="{:o}".format)
def test_other_user_is_told_what_he_may_see(session_directory, mode):
    base = session_directory / f"listed-{mode:o}"
    base.mkdir()
    cache = Cache(base / "cache", time.time())
    closed = entry(cache, "closed").parent
    opened = entry(cache, "opened")
    os.chmod(entry(cache, "unreadable"), 0)
    os.chmod(closed, mode)
    home = base / "home"
    home.mkdir()
    os.chown(home, 65534, 65534)
    done = python(AS_NOBODY, arguments=(str(cache.root),), env={"XDG_CONFIG_HOME": str(home)})
    assert done.returncode == 0, done.stderr
    rows = {row["key"]: row for row in json.loads(done.stdout)["entries"]}
    assert rows[opened.parent.name]["states"] == {"unknown key": 1}
    assert rows[key("a", "unreadable")]["states"] == {"unreadable": 1}
    assert rows[key("a", "closed")]["bytes"] in (0, (closed / os.listdir(closed)[0]).stat().st_size)
