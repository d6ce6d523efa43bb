"""What was compiled is sent in the background, and at the end of a process, however that was started."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from conftest import SOURCE, python

from safecache.integrations import cpp_codecache
from safecache.places.refs import Ref
from safecache.ports import Requested, tell
from safecache.remote import client, exchange, parcels, sender, stores, tier
from safecache.reporting import events
from safecache.reporting.kinds import Count, Kind
from safecache.store import bundles

from .liars import Liar
from .test_parcels import entry_bundle, kernels, sealed_entry

pytest.importorskip("zstandard")


@pytest.fixture
def remote(redis_server, settings):
    settings(SAFECACHE_REMOTE=redis_server.url)
    yield redis_server
    assert sender.flush(20) == 0


def written(bundle, *contents):
    from safecache.places import layout
    from safecache.store import entry_files

    for content in contents:
        entry_files.publish(bundle.name_file(layout.name_entry(content)).path, content, bundle.root)


def there(redis_server):
    return {name.decode().rpartition("/")[2].partition("@")[0] for name in redis_server.client().scan_iter()}


def test_entry_is_sent_with_all_that_was_asked_for_since(remote, tmp_path):
    entry, kernel = entry_bundle(tmp_path), kernels(tmp_path)
    before = Ref(Kind.NATIVE_CODE, "ab/earlier.so", str(tmp_path))
    tell(Requested(before))
    tell(Requested(entry))
    tell(Requested(kernel))
    written(entry, sealed_entry())
    tier.keep(entry)
    assert sender.flush(20) == 0
    assert there(remote) == {entry.key, kernel.key}
    name = parcels.name_object(entry.kind, entry.key)
    found = parcels.decode_object(remote.client().get(stores.make_prefix() + name), name, entry, 1 << 20)
    assert found.needs == ((Kind.KERNEL, kernel.key),)


def test_what_is_needed_comes_in_one_go_with_who_needs_it(remote, tmp_path, monkeypatch):
    test_entry_is_sent_with_all_that_was_asked_for_since(remote, tmp_path)
    exchange._state.reset()
    shutil.rmtree(tmp_path / "cache")
    shutil.rmtree(tmp_path / "triton")
    requests = []
    read = client.Client.read_unverified
    monkeypatch.setattr(
        client.Client, "read_unverified", lambda self, names: requests.append(list(names)) or read(self, names)
    )
    entry, kernel = entry_bundle(tmp_path), Ref(Kind.KERNEL, "K" * 52, str(tmp_path / "triton"))
    assert bundles.fetch(entry)
    assert bundles.fetch(kernel)
    assert len(requests) == 2, "the entry, and then all that it needs"
    assert sorted(kernel.list_names()) == ["__grp__kernel.json", "kernel.cubin", "kernel.json"]
    # What is not there is asked for once.
    for _ in range(3):
        assert not bundles.fetch(Ref(Kind.FX_ENTRY, "gabsent", entry.root))
    assert len(requests) == 3


def test_what_is_needed_and_not_there_is_counted_and_asked_for_once(remote, tmp_path):
    test_entry_is_sent_with_all_that_was_asked_for_since(remote, tmp_path)
    exchange._state.reset()
    events._state.reset()
    [kernel] = [name for name in remote.client().scan_iter() if b"/kernel" in name or b"/triton" in name]
    remote.client().delete(kernel)
    shutil.rmtree(tmp_path / "cache")
    shutil.rmtree(tmp_path / "triton")
    entry = entry_bundle(tmp_path)
    assert bundles.fetch(entry)
    assert not bundles.fetch(Ref(Kind.KERNEL, "K" * 52, str(tmp_path / "triton")))
    counted = events.read_counters()
    assert counted[Count.REMOTE_MISS.value] == 1 and counted[Count.REMOTE_ASKED.value] == 2, counted


def test_no_header_is_precompiled_where_the_remote_has_the_libraries(remote, settings, tmp_path):
    """It takes longer than all else of a second host's start."""
    made = []

    def asked():
        return cpp_codecache.precompile_header(lambda *args: made.append(args) or "a header", None, ("torch.h", ""), {})

    written(entry_bundle(tmp_path), sealed_entry())
    bundle = entry_bundle(tmp_path)
    tier.keep(bundle)
    assert sender.flush(20) == 0
    exchange._state.reset()
    assert asked() == "a header"
    there = entry_bundle(tmp_path / "second")
    assert bundles.fetch(there)
    assert asked() is None and len(made) == 1


def test_two_hosts_entries_for_one_key_are_joined(remote, tmp_path):
    one, two = entry_bundle(tmp_path / "one"), entry_bundle(tmp_path / "two")
    written(one, sealed_entry(b"with one guard"))
    written(two, sealed_entry(b"with another"))
    for bundle in (one, two):
        exchange._state.reset()
        tier.keep(bundle)
        assert sender.flush(20) == 0
    third = entry_bundle(tmp_path / "three")
    exchange._state.reset()
    assert bundles.fetch(third)
    assert len(third.list_names()) == 2


def test_queue_that_is_full_holds_nobody_up(settings, tmp_path, monkeypatch):
    server = Liar("silent")
    settings(SAFECACHE_REMOTE=server.url, SAFECACHE_REMOTE_TIMEOUT="0.05")
    monkeypatch.setattr(sender, "_MOST_WAITING", 3)
    sender._sender.reset()
    for number in range(50):
        sender.enqueue(entry_bundle(tmp_path, key=f"f{number}"))
    assert sender.flush(30) >= 40
    assert events.read_counters()["not sent to remote"] >= 40
    server.close()


def test_what_is_too_large_is_no_business_of_push(remote, settings, tmp_path, caplog):
    settings(SAFECACHE_REMOTE=remote.url, SAFECACHE_REMOTE_MAX_BYTES="4kB")
    bundle = entry_bundle(tmp_path)
    written(bundle, sealed_entry(os.urandom(10_000)))
    tier.keep(bundle)
    assert sender.flush(20) == 0 and not there(remote)
    assert events.read_counters()["not sent to remote"] == 1
    assert "larger than max_bytes of the remote" in caplog.text and "push" not in caplog.text


COMPILE = """
import safecache, torch
torch.compile(lambda x: x.sin() + 1)(torch.ones(4))
"""
KEEP = """
import os
from pathlib import Path
from helpers import filled
from safecache.places.refs import Ref
from safecache.remote import tier
from safecache.reporting.kinds import Kind
root = os.environ["TORCHINDUCTOR_CACHE_DIR"]
for kind in (Kind.AOT_ENTRY, Kind.FX_ENTRY):
    key = kind.value[0] + "x" * 51
    filled.entry(Path(root), kind, key, b"compiled")
    tier.keep(Ref(kind, key, root))
"""
IN_A_CHILD = """
import multiprocessing, sys
def work():
    exec(open(sys.argv[1]).read(), {{}})
if __name__ == "__main__":
    child = multiprocessing.get_context({how!r}).Process(target=work)
    child.start()
    child.join()
    sys.exit(child.exitcode)
"""


@pytest.mark.parametrize(("how", "code"), [("itself", COMPILE), ("spawn", KEEP), ("fork", KEEP)])
def test_process_that_ends_sends_the_rest(redis_server, new_home, tmp_path, how, code):
    home = new_home()
    program, starter = tmp_path / "program.py", tmp_path / "starter.py"
    program.write_text(code)
    starter.write_text(IN_A_CHILD.format(how=how))
    path = os.pathsep.join([str(SOURCE), str(SOURCE / "tests")])
    environment = os.environ | home.environment | {"SAFECACHE_REMOTE": redis_server.url, "PYTHONPATH": path}
    command = [sys.executable, str(program)] if how == "itself" else [sys.executable, str(starter), str(program)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert not [line for line in done.stderr.splitlines() if "safecache" in line], done.stderr[-3000:]
    kinds = {name.decode().split("/")[3] for name in redis_server.client().scan_iter()}
    assert {"aot_autograd", "fx_graph", *(["native_code"] if code == COMPILE else [])} <= kinds, kinds


def test_process_that_cannot_send_in_time_ends_and_says_so(new_home):
    server, home = Liar("silent"), new_home()
    environment = home.environment | {
        "SAFECACHE_REMOTE": server.url,
        "SAFECACHE_REMOTE_FLUSH": "0.2",
        "SAFECACHE_REMOTE_TIMEOUT": "5",
    }
    code = (
        "from safecache.remote import sender; from safecache.places.refs import Ref\n"
        "from safecache.reporting.kinds import Kind\n"
        "sender.enqueue(Ref(Kind.FX_ENTRY, 'fkey', '/nowhere'))"
    )
    done = python(code, env=environment)
    server.close()
    assert done.returncode == 0 and not done.stdout, done
    assert "uploads to the remote cache did not finish [remote unavailable]: 1 is left" in done.stderr, done.stderr
    assert "Help: safecache copy here URL" in done.stderr, done.stderr


def test_fork_goes_on_with_redis_and_without_what_does_not_survive_one(remote, settings, tmp_path):
    """redis-py makes connections of its own in the child; an object store would hang for ever."""
    code = (
        "import os\n"
        "from safecache.remote import client\n"
        "remote = client.current()\n"
        "remote.find_sizes(['a'])\n"
        "if os.fork() == 0:\n"
        "    try: os._exit(0 if remote.find_sizes(['a']) == {{}} else 1)\n"
        "    except client.Unavailable: os._exit(7)\n"
        "print(os.waitstatus_to_exitcode(os.wait()[1]))"
    ).replace("{{}}", "{}")
    for url, expected in ((remote.url, "0"), (f"file://{tmp_path}", "0")):
        done = python(code, env={"SAFECACHE_REMOTE": url, "SAFECACHE_REMOTE_TIMEOUT": "20"})
        assert done.stdout.strip() == expected, done
