"""Triton's own remote cache, with a backend in memory: what it delivers is kept only if a record attests it as this file."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from helpers.fresh import forget_kernels

from safecache.built_code import triton_files, triton_remote
from safecache.built_code.triton_remote import RECORD
from safecache.reporting import events
from safecache.signing import keyring

LIST = "__grp__k.json"
FILES = {"k.cubin": b"of one", "k.json": b'{"by": "one"}'}


class Store:
    """As a backend of Triton's for one key."""

    def __init__(self) -> None:
        self.files, self.asked, self.fails = {}, [], False

    def get(self, names):
        self.asked.append(list(names))
        if self.fails:
            raise TimeoutError("no answer")
        return {name: self.files[name] for name in names if name in self.files}

    def put(self, name, content):
        if self.fails:
            raise TimeoutError("no answer")
        self.files[name] = content


class Host:
    """What Triton's manager does of a key, with a cache of its own."""

    def __init__(self, store, root, key="KEY") -> None:
        self.store, self.directory = store, str(root / key)
        self.renew()

    def renew(self) -> None:
        """As in a new process."""
        forget_kernels()
        self.backend = triton_remote.Backend(self.store, self.directory)

    def put(self, name, content) -> None:
        self.backend.put(name, content)
        triton_files.put(self.directory, name, content)

    def put_group(self, files=FILES) -> None:
        for name, content in files.items():
            self.put(name, content)
        self.put(LIST, json.dumps({"child_paths": sorted(files)}).encode())

    def take(self, names):
        """The contents that may be used, by name, None in place of refused ones."""
        found = {name: self.backend.accept(name, content) for name, content in self.backend.get(names).items()}
        return {name: path and Path(path).read_bytes() for name, path in found.items()}

    def group(self):
        listed = self.take([LIST]).get(LIST)
        return listed and self.take(json.loads(listed)["child_paths"])


@pytest.fixture
def hosts(tmp_path):
    """Makes hosts with one store; the directory of the other hosts' caches differs, their keys do not."""
    store = Store()
    return lambda name, key="KEY": Host(store, tmp_path / name, key)


def test_group_arrives_whole_and_is_kept(hosts):
    hosts("one").put_group()
    two = hosts("two")
    assert two.group() == FILES
    forget_kernels()
    assert triton_files.get_group(two.directory, "k.json") is not None


def test_records_of_a_group_are_not_asked_for_but_that_of_its_list(hosts):
    one = hosts("one")
    one.put_group()
    two = hosts("two")
    assert two.group() and one.store.asked == [[LIST, LIST + RECORD], sorted(FILES)]


@pytest.mark.parametrize("name", [*FILES, LIST])
def test_changed_content_is_refused(hosts, name):
    one = hosts("one")
    one.put_group()
    one.store.files[name] += b" "
    found = hosts("two").group()
    assert found is None or found[name] is None
    assert events.read_counters()["damaged"] == 1


@pytest.mark.parametrize("record", [None, b"", b"garbage"])
def test_file_without_a_record_is_refused(hosts, record, caplog):
    one = hosts("one")
    one.put("k.so", b"a library")
    one.store.files.pop("k.so" + RECORD)
    if record is not None:
        one.store.files["k.so" + RECORD] = record
    assert hosts("two").take(["k.so"]) == {"k.so": None}
    (line,) = caplog.messages
    assert "k.so of Triton's remote cache Store [" in line


@pytest.mark.parametrize("what", ["key", "name"])
def test_file_that_was_sealed_as_another_is_refused(hosts, what):
    one = hosts("one", "OTHER" if what == "key" else "KEY")
    name = "other.so" if what == "name" else "k.so"
    one.put(name, b"another library")
    files = one.store.files
    files["k.so"], files["k.so" + RECORD] = files[name], files[name + RECORD]
    assert hosts("two").take(["k.so"]) == {"k.so": None}
    assert events.read_counters()["other cache key"] == 1


def test_file_of_another_writer_s_group_is_refused(hosts):
    one = hosts("one")
    one.put_group()
    hosts("other").put("k.cubin", b"sealed too")
    found = hosts("two").group()
    assert found == {**FILES, "k.cubin": None}


def test_names_that_lead_elsewhere_are_refused(hosts, tmp_path):
    two = hosts("two")
    two.store.files["../k.so"] = b"anything"
    assert two.take(["../k.so"]) == {"../k.so": None} and not os.path.exists(tmp_path / "two" / "k.so")


def test_trust_in_private_files_says_nothing_of_what_arrives(hosts, settings):
    settings(SAFECACHE_TRUST="private")
    two = hosts("two")
    os.makedirs(two.directory, 0o700)
    with open(os.path.join(two.directory, "k.so"), "wb") as file:
        file.write(b"of stock Triton's")
    two.store.files["k.so"] = b"evil"
    assert two.take(["k.so"]) == {"k.so": None}


def test_nothing_is_sent_without_a_key_to_seal_it(hosts, settings):
    settings(SAFECACHE_KEY_FILE=os.devnull)
    one = hosts("one")
    one.put_group()
    assert keyring.current().signing is None and not one.store.files


def test_list_is_not_sent_without_its_files(hosts):
    one = hosts("one")
    one.put(LIST, json.dumps({"child_paths": ["k.cubin"]}).encode())
    assert not one.store.files


def test_what_is_here_serves_while_the_store_does_not_answer(hosts):
    one = hosts("one")
    one.put_group()
    one.put("k.so", b"a library")
    one.renew()
    one.store.fails = True
    assert one.group() == FILES and one.take(["k.so", "absent"]) == {"k.so": b"a library"}
    assert events.read_counters() == {**events.read_counters(), "remote failed": 3}


def test_what_is_here_does_not_serve_while_the_store_lacks_it(hosts):
    """So that it is sent there once more."""
    one = hosts("one")
    one.put_group()
    one.store.files.clear()
    one.renew()
    assert one.group() is None


def test_damaged_files_here_do_not_serve(hosts):
    one = hosts("one")
    one.put_group()
    with open(os.path.join(one.directory, "k.cubin"), "ab") as file:
        file.write(b" ")
    one.renew()
    one.store.fails = True
    assert one.group() is None
