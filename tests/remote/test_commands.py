"""`safecache push` and `pull`: a whole cache is shared through a real server, and nothing that does not verify."""

from __future__ import annotations

import itertools
import json
import os
import struct
import time

import pytest
from helpers import filled, in_process
from helpers.caches import key

import safecache
from safecache.places.refs import Ref
from safecache.ports import File
from safecache.remote import client, parcels, sender, stores
from safecache.remote.client import Unavailable
from safecache.reporting.kinds import Kind
from safecache.testing import failing

run = in_process.run

pytest.importorskip("zstandard")


@pytest.fixture(params=["redis", "file"])
def url(request, settings, tmp_path):
    """An empty remote, of either engine."""
    if request.param == "redis":
        server = request.getfixturevalue("redis_server")
        pytest.importorskip("redis")
        found = server.url
    else:
        pytest.importorskip("obstore")
        (tmp_path / "remote").mkdir()
        found = f"file://{tmp_path / 'remote'}"
    settings(SAFECACHE_REMOTE=found)
    return found


@pytest.fixture
def cache(tmp_path):
    return filled.fill(tmp_path / "cache")


def told(said, code=0):
    assert said.code == code, (said.out, said.err)
    return json.loads(said.out)


def counted(said, code=0):
    report = told(said, code)
    return {name: report[name] for name in ("copied", "already_there", "refused", "failed") if name in report}


def test_what_is_pushed_is_pulled_as_it_was(run, url, cache, tmp_path):
    everything = {"already_there": 0, "refused": 0, "failed": 0}
    assert counted(run("push", cache, "--json")) == {"copied": filled.BUNDLES} | everything
    there = tmp_path / "there"
    assert counted(run("pull", there, "--json")) == {"copied": filled.BUNDLES} | everything
    assert filled.contents(there) == filled.contents(cache)
    assert run("verify", there).code == 0


def test_what_is_there_is_left_alone(run, url, cache, tmp_path):
    run("push", cache)
    again = told(run("push", cache, "--json"))
    assert (again["copied"], again["already_there"], again["bytes"]) == (0, filled.BUNDLES, 0)
    run("pull", tmp_path / "there")
    assert told(run("pull", tmp_path / "there", "--json"))["already_there"] == filled.BUNDLES
    assert told(run("push", cache, "--json", "--again"))["copied"] == filled.BUNDLES


def test_a_push_that_was_cut_short_is_taken_up(run, url, cache, monkeypatch):
    stock, numbers = client.Client._ask, itertools.count()

    def ask(remote, request, *, writing=False):
        if writing and next(numbers) >= 3:
            raise Unavailable
        return stock(remote, request, writing=writing)

    with monkeypatch.context() as patched:
        patched.setattr(client.Client, "_ask", ask)
        said = counted(run("push", cache, "--json"), 1)
    assert said == {"copied": 3, "already_there": 0, "refused": 0, "failed": filled.BUNDLES - 3}
    assert told(run("push", cache, "--remote", url, "--json"))["copied"] == filled.BUNDLES - 3


def test_entries_of_a_key_are_joined(run, url, cache, tmp_path):
    run("push", cache)
    other = filled.entry(tmp_path / "other", Kind.FX_ENTRY, filled.GRAPH, b"with other guards")
    assert told(run("push", tmp_path / "other", "--json"))["copied"] == 1
    assert told(run("push", tmp_path / "other", "--json"))["already_there"] == 1
    # A cache that has one of them fetches the other.
    assert told(run("pull", tmp_path / "other", "--json"))["copied"] == filled.BUNDLES
    assert len(list(other.parent.iterdir())) == 2


def test_what_an_entry_needs_survives_another_that_joins_it(run, url, cache, tmp_path):
    run("push", cache)
    filled.entry(tmp_path / "other", Kind.AOT_ENTRY, key("a", "graph"), b"with other guards")
    run("push", tmp_path / "other")
    name = parcels.name_object(Kind.AOT_ENTRY, key("a", "graph"))
    content = client.get_background().read_unverified([stores.make_prefix() + name])[stores.make_prefix() + name]
    found = parcels.unpack_unverified(content, name, 1 << 20)
    assert found.needs == ((Kind.FX_ENTRY, filled.GRAPH),) and len(found.files) == 2


def test_what_does_not_verify_is_not_sent(run, url, cache):
    for path in (cache / filled.LIBRARY[1:3]).glob("*.so"):
        path.write_bytes(b"altered")
    said = told(run("push", cache, "--json"), 1)
    assert (said["copied"], said["refused"]) == (filled.BUNDLES - 1, 1)
    assert said["problems"][0]["name"].startswith("inductor:native_code/") and "verif" in said["problems"][0]["why"]


@pytest.mark.parametrize("name", ["k.cubin", "__grp__k.json"])
def test_part_of_a_kernel_is_not_sent(run, url, tmp_path, name):
    kernel = filled.kernel(tmp_path / "cache" / "triton" / "0")
    (kernel / name).unlink()
    assert counted(run("push", tmp_path / "cache", "--json"), 1)["refused"] == 1
    assert not list(client.get_background().list_names(stores.make_prefix()))


def test_stock_files_are_not_sent(run, url, tmp_path):
    filled.write(tmp_path / "stock" / "aotautograd" / key("a", "stock") / "entry", b"a pickle of stock torch")
    assert counted(run("push", tmp_path / "stock", "--json"), 1)["refused"] == 1
    assert not list(client.get_background().list_names(stores.make_prefix()))


def test_what_does_not_verify_is_not_written(run, url, cache, tmp_path):
    """Content that was altered, that lies under another name, and that another key has sealed."""
    run("push", cache)
    remote = client.get_background()
    names = sorted(each.name for each in remote.list_names(stores.make_prefix()))
    first = remote.read_unverified(names)
    altered = bytearray(first[names[0]])
    altered[len(altered) // 2] ^= 1
    remote.write(names[0], bytes(altered))
    remote.write(names[1], first[names[2]])
    said = told(run("pull", tmp_path / "there", "--json"), 1)
    assert (said["copied"], said["refused"]) == (filled.BUNDLES - 2, 2)
    refused = {problem["name"] for problem in said["problems"]}
    assert refused == {f"inductor:{name.removeprefix(stores.make_prefix()).partition('@')[0]}" for name in names[:2]}


def test_of_a_stranger_nothing_is_written(run, url, cache, tmp_path, settings):
    run("push", cache)
    settings(XDG_CONFIG_HOME=tmp_path / "elsewhere")
    safecache.reset()
    said = told(run("pull", tmp_path / "there", "--json"), 1)
    assert (said["copied"], said["refused"]) == (0, filled.BUNDLES)
    assert "sealed by key" in said["problems"][0]["why"]
    assert not (tmp_path / "there").exists()


def sealed_as(kind: Kind, cache_key: str, content: bytes, key: str) -> None:
    """Have the remote hold a parcel by our own key: one that a trusted builder was made to seal."""
    name = parcels.name_object(kind, cache_key)
    remote = client.get_background()
    parcel = parcels.Parcel(Ref(kind, key, "inductor"), (File("entry", content, None),))
    remote.write(stores.make_prefix() + name, parcels.encode_object(parcel, name))


@pytest.mark.parametrize("said", ["../../victim", "/victim", "ab/../../victim", "..", ""])
def test_a_key_that_would_leave_the_cache_is_refused(run, url, tmp_path, said):
    content = filled.sealed(tmp_path / "made", Kind.DYNAMO_PACKAGE, said, b"x").read_bytes()
    sealed_as(Kind.DYNAMO_PACKAGE, said, content, key=said)
    assert counted(run("pull", tmp_path / "a" / "b" / "cache", "--json"), 1)["refused"] == 1
    assert not list(tmp_path.rglob("*victim*")) and not (tmp_path / "a").exists()


def test_a_parcel_that_states_another_key_is_refused(run, url, tmp_path):
    content = filled.sealed(tmp_path / "made", Kind.DYNAMO_PACKAGE, "other", b"x").read_bytes()
    sealed_as(Kind.DYNAMO_PACKAGE, "one", content, key="other")
    assert counted(run("pull", tmp_path / "cache", "--json"), 1)["refused"] == 1


def test_a_parcel_of_ours_with_what_does_not_verify_is_refused(run, url, tmp_path):
    """By the key of a builder who was made to seal a file that nobody has sealed by itself."""
    sealed_as(Kind.DYNAMO_PACKAGE, filled.FUNCTION, b"planted", key=filled.FUNCTION)
    assert counted(run("pull", tmp_path / "cache", "--json"), 1)["refused"] == 1
    assert not (tmp_path / "cache").exists()


def test_other_builds_are_left_there(run, url, cache, tmp_path, monkeypatch):
    run("push", cache)
    stock = parcels.provenance.digest_build
    monkeypatch.setattr(parcels.provenance, "digest_build", lambda kind: f"{stock(kind)[:-1]}_")
    said = told(run("pull", tmp_path / "there", "--json"))
    assert (said["copied"], said["other_builds"]) == (0, filled.BUNDLES)


def test_what_vllm_alone_looks_up_is_left_there_and_is_of_no_other_build(run, url, cache, tmp_path):
    model = Ref(Kind.AOT_FUNCTION, "torch_aot_compile/0/rank_0_0/model", str(tmp_path))
    filled.sealed(tmp_path / model.key, Kind.AOT_FUNCTION, "", b"compiled")
    assert sender.send(client.get_background(), model).size
    said = told(run("pull", tmp_path / "there", "--json"))
    assert (said["copied"], said["refused"], said["other_builds"]) == (0, 0, 0)


def test_other_namespaces_are_left_there(run, url, cache, tmp_path, settings):
    run("push", cache)
    settings(SAFECACHE_NAMESPACE="team/other")
    said = told(run("pull", tmp_path / "there", "--json"))
    assert (said["copied"], said["other_builds"]) == (0, 0)


def test_kernels_go_where_triton_looks(run, url, tmp_path, monkeypatch):
    """By default: those of a device of Inductor's to its cache, those of Triton alone to its own."""
    inductor, triton = tmp_path / "inductor", tmp_path / "triton"
    other = filled.key("f", "other")[1:].upper()[:51] + "A"
    filled.kernel(tmp_path / "made" / "triton" / "1")
    filled.kernel(tmp_path / "alone", other)
    run("push", tmp_path / "made", tmp_path / "alone")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(inductor))
    monkeypatch.setenv("TRITON_HOME", str(triton))
    run("pull")
    assert (inductor / "triton" / "1" / filled.KERNEL / "__grp__k.json").exists()
    assert (triton / ".triton" / "cache" / other / "__grp__k.json").exists()


def test_kernels_go_where_triton_is_told_to_look(run, url, tmp_path, monkeypatch):
    filled.kernel(tmp_path / "made" / "triton" / "1")
    run("push", tmp_path / "made")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    run("pull")
    assert (tmp_path / "triton" / filled.KERNEL / "__grp__k.json").exists()
    assert not (tmp_path / "inductor").exists()


def test_a_remote_that_nobody_serves(run, settings, cache):
    pytest.importorskip("redis")
    settings(SAFECACHE_REMOTE="redis://user:s3cret@127.0.0.1:1/0")
    for command in ("push", "pull"):
        said = run(command, cache)
        assert said.code == 1 and "redis://127.0.0.1:1/0" in said.err and "s3cret" not in said.err + said.out


def test_no_remote(run, cache):
    said = run("push", cache)
    assert said.code == 78 and "SAFECACHE_TIERS" in said.err


def test_a_bad_url_is_not_shown(run, cache):
    said = run("push", cache, "--remote", "mysql://user:s3cret@there")
    assert said.code == 2 and "redis" in said.err and "s3cret" not in said.err


def test_a_url_of_a_command_has_parameters(run, new_redis, cache, tmp_path):
    pytest.importorskip("redis")
    server = new_redis("--requirepass", "s3cret")
    url = f"{server.url}?password_file={filled.write(tmp_path / 'password', b's3cret')}&timeout=2&connect=1"
    filled.entry(cache, Kind.FX_ENTRY, key("f", "large"), os.urandom(100_000))
    said = told(run("copy", cache, f"{url}&ttl=1h&max_bytes=50K", "--json"), 1)
    assert (said["copied"], said["refused"]) == (filled.BUNDLES, 1) and "max_bytes" in said["problems"][0]["why"]
    held = server.client(password="s3cret")
    assert {held.ttl(name) > 3000 for name in held.scan_iter()} == {True}
    assert told(run("copy", cache, url, "--json"))["copied"] == 1
    said = told(run("copy", f"{url}&max_bytes=50K", tmp_path / "there", "--json"), 1)
    assert (said["copied"], said["refused"]) == (filled.BUNDLES, 1)
    assert told(run("ls", "--sum", "--remote", url, "--json"))["total"]["groups"] == filled.BUNDLES + 1


@pytest.mark.parametrize("command", [("copy",), ("ls", "--sum", "--remote")])
def test_a_bad_parameter_is_refused_and_not_shown(run, command):
    said = run(*command, "redis://user:s3cret@there?timeout=soon")
    assert said.code == 2 and "parameter" in said.err and "s3cret" not in said.err + said.out


def test_without_a_terminal_there_are_plain_lines(run, url, tmp_path):
    for number in range(100):
        filled.entry(tmp_path / "many", Kind.FX_ENTRY, key("f", str(number)), b"x")
    said = run("push", tmp_path / "many", "--remote", url)
    assert [line.split()[2] for line in said.err.splitlines()] == [str(tenth * 10) for tenth in range(1, 11)]
    assert said.lines[0].startswith(f"{url}: 100 copied, 0 already there")


def test_a_cache_that_cannot_be_written(run, url, cache, tmp_path, monkeypatch):
    run("push", cache)
    with failing("rename", "ENOSPC", str(tmp_path / "there")):
        said = told(run("pull", tmp_path / "there", "--json"), 1)
    assert (said["copied"], said["failed"]) == (0, filled.BUNDLES)


def test_too_large_to_be_fetched(run, url, cache, tmp_path, settings):
    filled.entry(cache, Kind.FX_ENTRY, key("f", "large"), os.urandom(100_000))
    run("push", cache)
    settings(SAFECACHE_REMOTE_MAX_BYTES=50_000)
    said = told(run("pull", tmp_path / "there", "--json"), 1)
    assert (said["copied"], said["refused"]) == (filled.BUNDLES, 1)
    assert "max_bytes" in said["problems"][0]["why"]


def test_keys_that_are_hashed_in_names_come_back(run, url, cache, tmp_path):
    run("push", cache)
    names = [each.name for each in client.get_background().list_names(stores.make_prefix())]
    assert any("pgo_state/~" in name for name in names)
    run("pull", tmp_path / "there")
    assert (tmp_path / "there" / "dynamo" / "code_state_job_train_7.pkl").exists()


def test_what_the_remote_holds(run, url, cache, settings):
    run("push", cache)
    client.get_background().write(f"{stores.make_prefix()}unknown", b"1234")
    said = told(run("du", "--remote", "--json"))
    kinds = said["kinds"]
    assert kinds["FX graph entries"]["groups"] == kinds["profile of dynamic shapes"]["of_this_build"] == 1
    assert kinds["other"]["bytes"] == 4 and kinds["other"]["of_this_build"] == 0
    assert said["total"]["groups"] == filled.BUNDLES + 1
    assert said["total"]["bytes"] == sum(row["bytes"] for row in kinds.values())
    assert (said["total"]["oldest"] is None) == url.startswith("redis")
    lines = run("du", "--remote", url).lines
    assert url in lines[0] and any("Triton kernels" in line for line in lines)
    settings(SAFECACHE_NAMESPACE="another")
    assert told(run("du", "--remote", "--json"))["total"]["groups"] == 0


def test_without_the_option_caches_here_are_told_of(run, url, cache):
    assert "directories" in told(run("du", cache, "--json"))


@pytest.fixture
def aged(settings, tmp_path):
    """A directory as a remote, with five contents of 100 bytes, written so many hours ago."""
    pytest.importorskip("obstore")
    remote = tmp_path / "remote"
    remote.mkdir()
    settings(SAFECACHE_REMOTE=f"file://{remote}", SAFECACHE_MAX_BYTES=1)
    for hours in range(1, 6):
        path = filled.write(remote / "safecache" / "2" / "default" / "fx_graph" / f"k{hours}@b", bytes(100))
        os.utime(path, (time.time() - 3600 * hours,) * 2)
    filled.write(remote / "others", bytes(1000))
    return remote


def left(remote):
    return sorted(path.name[1] for path in remote.rglob("k*@b"))


def test_remote_is_brought_within_a_size(run, aged):
    said = told(run("gc", "--remote", "--max-bytes", "250", "--json"))
    assert said["removed"] == {"groups": 3, "bytes": 300} and said["left"] == {"groups": 2, "bytes": 200}
    assert left(aged) == ["1", "2"] and (aged / "others").exists()


def test_remote_is_brought_within_an_age(run, aged):
    dry = told(run("gc", "--remote", "--max-age", "150min", "--json", "--dry-run"))
    assert dry["removed"]["groups"] == 3 and len(left(aged)) == 5
    assert "3 groups, 300" in run("gc", "--remote", "--max-age", "150min").out
    assert left(aged) == ["1", "2"]


def test_limits_of_caches_here_are_not_those_of_the_remote(run, aged):
    assert run("gc", "--remote").code == 2 and run("gc", "--remote", "--max-files", "1").code == 2
    assert len(left(aged)) == 5


def test_what_cannot_be_removed_is_said(run, aged, monkeypatch):
    def remove(remote, name):
        raise Unavailable

    monkeypatch.setattr(client.Client, "remove", remove)
    said = told(run("gc", "--remote", "--max-bytes", "250", "--json"), 1)
    assert said["failed"]["groups"] == 3 and said["left"]["groups"] == 5


def test_redis_expires_by_itself(run, redis_server, settings, cache):
    pytest.importorskip("redis")
    settings(SAFECACHE_REMOTE=redis_server.url)
    run("push", cache)
    said = run("gc", "--remote", "--max-age", "1s")
    assert said.code == 1 and "ttl in SAFECACHE_TIERS" in said.err
    assert redis_server.client().dbsize() == filled.BUNDLES


@pytest.mark.parametrize("command", [("du",), ("gc", "--max-bytes", "1")])
def test_remote_that_cannot_be_listed(run, settings, command):
    pytest.importorskip("redis")
    said = run(*command, "--remote", "redis://127.0.0.1:1/0")
    assert said.code == 1 and "redis://127.0.0.1:1/0 cannot be listed" in said.err


def test_many_are_asked_for_within_what_is_received_at_once(run, url, tmp_path, settings):
    settings(SAFECACHE_REMOTE_MAX_BYTES=10_000)
    for number in range(300):
        filled.entry(tmp_path / "many", Kind.FX_ENTRY, key("f", str(number)), os.urandom(6000))
    assert told(run("push", tmp_path / "many", "--json"))["copied"] == 300
    assert told(run("push", tmp_path / "many", "--json"))["already_there"] == 300
    assert told(run("pull", tmp_path / "there", "--json"))["copied"] == 300


def headed(header: object) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<I", len(text)) + text


ROW = ["dynamo_package", "a", "inductor", 0, 1, 1, ""]
GARBAGE = {
    "one byte": b"x",
    "a length alone": b"\xff\xff\xff\x7f",
    "a list": headed([]),
    "no row": headed({}),
    "a number": headed({"row": 7}),
    "a row of one part": headed({"row": ["a"]}),
    "a row of lists": headed({"row": [[], [], [], [], [], [], [], []]}),
    "files that are lists": headed({"row": [*ROW, [[["a"], 1, 1]]]}),
    "deep": struct.pack("<I", 4000) + b"[" * 4000,
    "no text": struct.pack("<I", 4) + b"\xff\xfe\xfd\xfc",
    "another place": headed({"row": ["dynamo_package", "../..", "inductor", *ROW[3:], [["entry", 1, ""]]]}),
    "the right names": headed({"row": [*ROW, [["entry", 1, ""]]]}),
    "another root": headed({"row": ["dynamo_package", "a", "inductor/../..", *ROW[3:], [["entry", 1, ""]]]}),
}


@pytest.mark.parametrize("content", GARBAGE.values(), ids=GARBAGE)
def test_garbage_in_the_remote_is_refused_or_replaced(run, url, cache, tmp_path, content):
    run("push", cache)
    remote = client.get_background()
    names = [each.name for each in remote.list_names(stores.make_prefix())]
    for name in names:
        remote.write(name, content)
    said = told(run("pull", tmp_path / "there", "--json"), 1)
    assert (said["copied"], said["refused"], said["failed"]) == (0, filled.BUNDLES, 0)
    assert not (tmp_path / "there").exists()
    # What lists the right names is taken for being there, whoever wrote it.
    forged = int(content == GARBAGE["the right names"])
    assert told(run("push", cache, "--json"))["already_there"] == forged
    assert told(run("push", cache, "--json", "--again"))["copied"] == filled.BUNDLES
    assert told(run("pull", tmp_path / "there", "--json"))["copied"] == filled.BUNDLES
