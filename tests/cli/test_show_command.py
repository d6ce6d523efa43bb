"""`show`: all about one group, found by its name, its key or the beginning of it, or a path of it."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import time

import pytest
from helpers.caches import DAY, HOUR, Cache, key
from helpers.fresh import forget_kernels
from helpers.key_cases import MAC, put, revoked
from helpers.listed import BUILD, GRAPH, entry, kernel

from safecache.places.layout import CodeFile
from safecache.reporting.kinds import Kind, Reason
from safecache.signing import keyring
from safecache.store import entry_files, gate


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache", time.time())


@pytest.fixture
def shown(run, cache):
    """What is told of the one that is called so, as JSON."""

    def ask(name, code=0):
        said = run("show", name, "--in", cache.root, "--json")
        assert said.code == code, said.err
        [report] = json.loads(said.out)["entries"]
        return report

    return ask


def test_entry_is_told_with_its_build_signer_files_and_what_it_refers_to(cache, shown, run):
    graph = entry(cache, "g", Kind.FX_ENTRY, GRAPH)
    path = entry(cache, "a", payload=pickle.dumps(["of", graph.parent.name]), age=9 * DAY)
    cache.use(path, HOUR)
    told = shown(key("a", "a"))
    own = keyring.current().signing
    assert told["signers"] == [{"id": own.id.hex(), "name": own.name, "trusted": True}]
    assert told["provenance"] == BUILD and told["refers_to"] == [key("f", "g")]
    assert told["kernels"] == ["triton_poi_fused_add_0", "triton_red_fused_sum_1"]
    content = path.read_bytes()
    assert told["contents"] == [
        {
            "path": str(path),
            "bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
            "verified": True,
            "refused": None,
        }
    ]
    said = run("show", key("a", "a"), "--in", cache.root).out
    for text in (own.id.hex(), "trusted here", key("f", "g"), BUILD["torch"], "triton_red_fused_sum_1", "verified"):
        assert text in said


def test_what_a_seal_says_is_told_in_words_and_as_it_is_with_json(cache, run, shown):
    said = {
        "ops": {"my.op.default": {"schema": "my::op(Tensor x) -> Tensor", "fake": "0123456789ab", "unseen": "yes"}},
        "rank": {"of the default group": "1 of 4"},
        "plain": {"fkey": ""},
    }
    build = {**BUILD, "cpu": "avx2 x86_64", "adopted": "yes", "omitted": json.dumps(said)}
    entry(cache, "a", build=build)
    lines = run("show", key("a", "a"), "--in", cache.root).lines
    for line in (
        "needs:       a CPU with avx2 x86_64",
        "adopted:     yes: a user has said that it is good, and not who made it",
        "compared:    schema of a custom op, my.op.default: my::op(Tensor x) -> Tensor",
        "compared:    fake implementation of a custom op, my.op.default: digest 0123456789ab",
        "compared:    rank, or number of ranks, of the default group: 1 of 4",
    ):
        assert line in lines, lines
    assert any(line.startswith("noted:       my.op.default: gradient of a custom op and ") for line in lines), lines
    assert not any("{" in line for line in lines), lines
    assert shown(key("a", "a"))["provenance"] == build


@pytest.mark.parametrize("said", ["", "[]", '{"ops": []}', '{"ops": {"a": 1}}', '{"rank": "1"}', "{"])
def test_statement_that_is_malformed_says_nothing(cache, run, said):
    entry(cache, "a", build={**BUILD, "omitted": said})
    lines = run("show", key("a", "a"), "--in", cache.root).lines
    assert not any(line.startswith(("compared", "noted", "omitted")) for line in lines), lines


def test_group_is_found_by_each_of_its_names(cache, shown, monkeypatch):
    folder = kernel(cache, "k", {"name": "add_kernel", "num_warps": 8})
    entry(cache, "a")
    for name in ("add_kernel", folder.name, folder.name[:9], str(folder), str(folder / "k.cubin")):
        told = shown(name, code=1)
        assert told["key"] == folder.name and told["options"] == {"num_warps": "8"}
    monkeypatch.chdir(folder)
    assert shown("./k.cubin", code=1)["key"] == folder.name


def test_what_a_load_would_refuse_is_told_with_its_evidence(cache, shown, run):
    path = entry(cache, "a")
    content = path.read_bytes()
    path.write_bytes(b"x" + content[1:])
    told = shown(key("a", "a"), code=1)
    assert told["states"] == {"sealed": 1}, "its seal is genuine"
    assert told["contents"][0]["refused"] == "its content does not match the digest in its seal [damaged]"
    said = run("show", key("a", "a"), "--in", cache.root)
    assert (
        said.code == 1 and f"refused {path}: its content does not match the digest in its seal [damaged]" in said.lines
    )


def test_kernel_is_judged_file_by_file(cache, shown):
    folder = kernel(cache, "k", {"name": "k"})
    for path in folder.iterdir():
        gate.attest_file(CodeFile(str(path), str(folder.parent), Kind.KERNEL), path.read_bytes())
    forget_kernels()
    assert all(file["verified"] for file in shown(folder.name)["contents"])
    (folder / "k.cubin").write_bytes(b"other")
    forget_kernels()
    told = {os.path.basename(file["path"]): file for file in shown(folder.name, code=1)["contents"]}
    assert "not the one that was sealed" in told["k.cubin"]["refused"] and told["k.json"]["verified"]


def test_signer_that_is_not_trusted_is_told_as_that(cache, shown):
    put(MAC)
    entry(cache, "a", by=MAC)
    assert shown(key("a", "a"))["signers"][0]["trusted"]
    put(revoked(MAC))
    keyring.renew()
    told = shown(key("a", "a"), code=1)
    assert not told["signers"][0]["trusted"] and told["provenance"] == {}


def test_what_was_moved_away_from_there_is_told(cache, shown, run):
    entry_files.quarantine(str(entry(cache, "a")), str(cache.root), Reason.DAMAGED)
    entry_files.quarantine(str(entry(cache, "b")), str(cache.root), Reason.OTHER_GPU)
    entry(cache, "a")
    [each] = shown(key("a", "a"))["quarantined"]
    assert each["reason"] == "damaged" and each["time"] and each["item"]
    assert "in quarantine: " in run("show", key("a", "a"), "--in", cache.root).out


def test_several_of_a_name_are_listed_and_none_is_shown(cache, run):
    for name in ("one", "two"):
        kernel(cache, name, {"name": "add_kernel"})
    said = run("show", "add_kernel", "--in", cache.root)
    assert said.code == 1 and len(said.lines) == 3 and "give the key of one" in said.err
    report = json.loads(run("show", "add_kernel", "--in", cache.root, "--json").out)
    assert len({row["key"] for row in report["matches"]}) == 2


def test_same_kernel_of_two_devices_is_shown_for_each(cache, run):
    for device in ("0", "1"):
        cache.kernel("k", HOUR, device)
    folder = cache.kernel("k", HOUR)[0].parent
    report = json.loads(run("show", folder.name, "--in", cache.root, "--json").out)
    assert [os.path.dirname(each["paths"][0])[-1] for each in report["entries"]] == ["0", "1"]


@pytest.mark.parametrize("name", ["nothing", "", "/nowhere/else", "\x1b[2J"])
def test_what_is_not_there_is_told(cache, run, name):
    entry(cache, "a")
    said = run("show", name, "--in", cache.root)
    assert said.code == 1 and "nothing is called" in said.err and "\x1b" not in said.err


@pytest.mark.timeout(20, method="signal")  # would hang for ever
def test_file_that_is_none_is_shown_as_that(cache, shown):
    path = entry(cache, "a")
    os.mkfifo(path.parent / "fifo")
    told = {os.path.basename(file["path"]): file for file in shown(key("a", "a"), code=1)["contents"]}
    assert told["fifo"]["refused"] == "a FIFO [not a file]" and told["fifo"]["sha256"] is None
    assert told[path.name]["verified"]
