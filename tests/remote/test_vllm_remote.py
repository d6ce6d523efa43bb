"""What vLLM keeps beside torch's caches, in a remote: models, and tables with their artifacts; and stores that lie."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from helpers.caches import key

from safecache.built_code import vllm_files
from safecache.errors import EntryRefusedError
from safecache.integrations import vllm
from safecache.places.layout import CodeFile
from safecache.places.refs import Ref
from safecache.ports import File
from safecache.remote import exchange, parcels, sender, stores
from safecache.remote.parcels import Parcel
from safecache.reporting import events
from safecache.reporting.kinds import Kind
from safecache.signing import keyring, provenance, seal
from safecache.signing.keys import Key
from safecache.store import attestations, bundles, manifests

pytest.importorskip("zstandard")

HASHES = ["0" * 64, "1" * 64]
ARTIFACTS = [f"artifact_compile_range_1_128_subgraph_{number}" for number in range(2)]


class Host:
    """A directory of vLLM's, as one of its processes uses it."""

    def __init__(self, base):
        self.root = base / "vllm" / "torch_compile_cache"

    def model(self, which=0):
        return self.root / "torch_aot_compile" / HASHES[which] / "rank_0_0" / "model"

    def part(self, which="0123456789"):
        return self.root / which / "rank_0_0" / "backbone"

    def saves_model(self, payload, which=0):
        """As vLLM does, once the model is compiled."""
        path = self.model(which)
        path.parent.mkdir(parents=True)
        temporary = path.with_name("model.1.tmp")
        temporary.write_bytes(model_of(payload))
        vllm.sending_os(os, enabled=lambda: True).replace(temporary, str(path))
        return path

    def saves_artifacts(self, which="0123456789", text="an artifact"):
        part = self.part(which)
        part.mkdir(parents=True)
        for name in ARTIFACTS:
            (part / name).write_text(f"{text} {name}")
            vllm_files.attest_artifact(str(part / name))
        (part / "computation_graph.py").write_text("an account")
        with vllm_files.Written(str(part / vllm_files.TABLE)) as file:
            file.write(repr({number: (name, str(part / name)) for number, name in enumerate(ARTIFACTS)}))
        return part

    def asks_for_model(self, which=0):
        """The bytes that torch is given to load, once vLLM has asked for the model."""
        self.forgets()
        path = self.model(which)
        path.parent.mkdir(parents=True, exist_ok=True)

        def load(model, aot_compilation_path):
            return Path(aot_compilation_path).read_bytes() if os.path.exists(aot_compilation_path) else None

        return vllm.load_model(load, None, ("a model", str(path)), {})

    def asks_for_artifacts(self, which="0123456789"):
        """What the table says, and the artifacts, once vLLM has asked for the table; None if it finds none."""
        self.forgets()
        part = self.part(which)
        vllm.initialize_cache(lambda *args, **named: None, None, (str(part),), {})
        if not (part / vllm_files.TABLE).exists():
            return None
        return vllm_files.open_table(str(part / vllm_files.TABLE)).read(), {path.name for path in part.iterdir()}

    @staticmethod
    def forgets():
        assert sender.flush(20) == 0
        attestations._state.reset()
        exchange._state.reset()


def model_of(payload, signing=None):
    signing = signing or keyring.current().signing
    return seal.attach(payload, Kind.AOT_FUNCTION, "", signing, provenance.make_statement(Kind.AOT_FUNCTION))


@pytest.fixture
def remote(redis_server, settings):
    settings(SAFECACHE_REMOTE=redis_server.url, SAFECACHE_REMOTE_TIMEOUT="20")
    yield redis_server.client()
    assert sender.flush(20) == 0


@pytest.fixture
def hosts(tmp_path, remote):
    return Host(tmp_path / "one"), Host(tmp_path / "two")


def names(remote, kind):
    return sorted(
        name for name in remote.scan_iter() if name.startswith(f"{stores.make_prefix()}{kind.value}/".encode())
    )


def files_below(host):
    return [path for path in host.root.rglob("*") if path.is_file()]


def test_model_comes_to_a_host_with_an_empty_directory(hosts):
    one, two = hosts
    content = one.saves_model(b"compiled").read_bytes()
    assert two.asks_for_model() == content == two.model().read_bytes()
    assert two.asks_for_model(1) is None


def test_model_names_what_its_user_asks_for_next(hosts, remote, tmp_path):
    one, _ = hosts
    assert one.asks_for_model() is None
    for asked in (Ref(Kind.NATIVE_CODE, "ab/cabc.so"), Ref(Kind.FX_ENTRY, key("f", "one"))):
        exchange.record_lookup(asked._replace(root=str(tmp_path)))
    path = one.model()
    path.write_bytes(model_of(b"compiled"))
    vllm_files.send_model(str(path))
    assert sender.flush(20) == 0
    [name] = names(remote, Kind.AOT_FUNCTION)
    found = parcels.unpack_unverified(remote.get(name), name.decode()[len(stores.make_prefix()) :], 1 << 20)
    assert found.needs == ((Kind.NATIVE_CODE, "ab/cabc.so"),)


def test_models_that_the_store_has_swapped_are_refused(hosts, remote, caplog):
    one, two = hosts
    for which in (0, 1):
        one.saves_model(b"compiled %d" % which, which)
    one.forgets()
    first, second = names(remote, Kind.AOT_FUNCTION)
    contents = remote.get(first), remote.get(second)
    remote.mset({first: contents[1], second: contents[0]})
    assert two.asks_for_model(0) is None and two.asks_for_model(1) is None
    assert (
        not files_below(two) and "other cache key" in events.read_counters() and "from the remote cache" in caplog.text
    )


@pytest.mark.parametrize("how", ["garbage", "bit", "stranger", "bare", "kernel"])
def test_models_of_a_hostile_store_are_refused(hosts, remote, how):
    one, two = hosts
    one.saves_model(b"compiled")
    one.forgets()
    [name] = names(remote, Kind.AOT_FUNCTION)
    content, plain = remote.get(name), name.decode()[len(stores.make_prefix()) :]
    stranger = Key.derive(os.urandom(32))
    file = File("model", model_of(b"planted", stranger), None)
    at = parcels.unpack_unverified(content, plain, 1 << 20).ref
    planted = {
        "garbage": b"no parcel",
        "bit": content[:60] + bytes([content[60] ^ 1]) + content[61:],
        # Sealed by somebody else, inside of a parcel that is ours.
        "stranger": parcels.encode_object(Parcel(at, (file,)), plain),
        # Not sealed at all, inside of one that is ours.
        "bare": parcels.encode_object(Parcel(at, (file._replace(content=b"planted"),)), plain),
        "kernel": parcels.encode_object(Parcel(at, (file._replace(name="../model"),)), plain),
    }[how]
    remote.set(name, planted)
    assert two.asks_for_model() is None and not files_below(two)


def test_strict_mode_raises_for_a_refused_model(hosts, remote, settings):
    one, two = hosts
    one.saves_model(b"compiled")
    one.forgets()
    remote.set(names(remote, Kind.AOT_FUNCTION)[0], b"planted")
    settings(SAFECACHE_STRICT="1")
    with pytest.raises(EntryRefusedError):
        two.asks_for_model()


def test_model_that_somebody_has_planted_is_not_sent(hosts, remote):
    one, _ = hosts
    path = one.model()
    path.parent.mkdir(parents=True)
    path.write_bytes(b"planted")
    vllm_files.send_model(str(path))
    one.forgets()
    assert not names(remote, Kind.AOT_FUNCTION)


def test_what_is_no_model_is_left_alone(hosts, remote, tmp_path):
    source, target = tmp_path / "a", tmp_path / "model"
    source.write_bytes(model_of(b"a program's own"))
    vllm.sending_os(os, enabled=lambda: True).replace(source, target)
    assert target.exists() and sender.flush(20) == 0 and not names(remote, Kind.AOT_FUNCTION)
    other = hosts[0].model()
    other.parent.mkdir(parents=True)
    target.rename(other)
    vllm.sending_os(os, enabled=lambda: False).replace(other, other.with_name("model"))
    assert sender.flush(20) == 0 and not names(remote, Kind.AOT_FUNCTION)


def test_artifacts_come_with_their_table(hosts):
    one, two = hosts
    text = (one.saves_artifacts() / vllm_files.TABLE).read_text()
    assert two.asks_for_artifacts() == (text, {*ARTIFACTS, vllm_files.TABLE})
    assert two.asks_for_artifacts("abcdef0123") is None


def test_tables_that_the_store_has_swapped_are_refused(hosts, remote):
    one, two = hosts
    for which in ("0123456789", "abcdef0123"):
        one.saves_artifacts(which, which)
    one.forgets()
    first, second = names(remote, Kind.TABLE)
    contents = remote.get(first), remote.get(second)
    remote.mset({first: contents[1], second: contents[0]})
    assert two.asks_for_artifacts() is None and not files_below(two)


@pytest.mark.parametrize("how", ["swapped", "lacking", "no record", "no table"])
def test_artifacts_within_a_parcel_are_verified_each(hosts, remote, how):
    """By somebody who has a key, and puts them together in another way."""
    one, two = hosts
    one.saves_artifacts()
    one.forgets()
    [name] = names(remote, Kind.TABLE)
    plain = name.decode()[len(stores.make_prefix()) :]
    sent = parcels.unpack_unverified(remote.get(name), plain, 1 << 20)
    first, second, table = sent.files
    files = {
        "swapped": (first._replace(content=second.content, record=second.record), second, table),
        "lacking": (first, table),
        "no record": (first._replace(record=None), second, table),
        "no table": (first, second),
    }[how]
    remote.set(name, parcels.encode_object(sent._replace(files=files), plain))
    assert two.asks_for_artifacts() is None and not files_below(two)


def test_part_of_the_artifacts_is_not_sent(hosts, remote):
    """vLLM ends if one that its table lists does not load."""
    one, _ = hosts
    part = one.saves_artifacts()
    one.forgets()
    remote.flushall()
    (part / ARTIFACTS[0]).write_text("planted")
    with vllm_files.Written(str(part / vllm_files.TABLE)) as file:
        file.write(repr({0: (ARTIFACTS[0], "")}))
    one.forgets()
    assert not names(remote, Kind.TABLE)


def test_directories_that_a_user_has_chosen_do_not_travel(hosts, remote, tmp_path):
    """Their names do not tell what is in them: another host's would be another model's."""
    one = hosts[0]
    one.root = tmp_path / "chosen"
    one.saves_artifacts("mine")
    one.root = tmp_path / "torch_compile_cache"
    one.saves_artifacts("mine")
    (one.root / "model").write_bytes(model_of(b"compiled"))
    vllm_files.send_model(str(one.root / "model"))
    one.forgets()
    assert not names(remote, Kind.TABLE) and not names(remote, Kind.AOT_FUNCTION)


def test_artifacts_get_records_without_a_remote_too_so_that_a_pack_has_them(settings, tmp_path):
    settings()
    part = Host(tmp_path).saves_artifacts()
    root = str(tmp_path / "vllm" / "torch_compile_cache")
    assert all(
        manifests.has_record_file(CodeFile(str(part / name), root, Kind.TABLE))
        for name in (*ARTIFACTS, vllm_files.TABLE)
    )
    (bundle,) = vllm_files.find_bundles(root)
    assert {file.name for file in bundles.read_verified_files(bundle)} == {*ARTIFACTS, vllm_files.TABLE}
