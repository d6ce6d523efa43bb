"""Servers as people run them: TLS, a cache that is full and evicts, many clients at once, processes that end soon."""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import SOURCE

from safecache.remote import client, stores
from safecache.settings import config

from .conftest import await_port, free_port, make_bucket

pytest.importorskip("zstandard")


def certificate(directory):
    """A key and a certificate for 127.0.0.1 that it has signed itself, as files."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    now = datetime.datetime.now(datetime.timezone.utc)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(address, critical=True)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (directory / "key.pem").write_bytes(key.private_bytes(serialization.Encoding.PEM, form, plain))
    (directory / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    return directory / "key.pem", directory / "cert.pem"


@pytest.fixture
def tls(new_redis, tmp_path):
    """The port of a Redis that speaks TLS alone, and its certificate."""
    key, cert = certificate(tmp_path)
    port = free_port()
    files = ("--tls-cert-file", str(cert), "--tls-key-file", str(key), "--tls-ca-cert-file", str(cert))
    server = new_redis("--tls-port", str(port), *files, "--tls-auth-clients", "no")
    await_port(port, server.process)
    return port, cert


def test_tls_with_a_certificate_that_is_trusted_and_with_one_that_is_not(tls, settings, caplog):
    port, cert = tls
    settings(SAFECACHE_REMOTE=f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={cert}", SAFECACHE_REMOTE_TIMEOUT="20")
    remote = client.current()
    remote.write("a", b"content")
    assert remote.read_unverified(["a"]) == {"a": b"content"} and not caplog.text
    settings(SAFECACHE_REMOTE=f"rediss://:hunter2@127.0.0.1:{port}/0")
    with pytest.raises(client.Unavailable):
        client.current().read_unverified(["a"])
    assert "certificate" in caplog.text.lower() and "hunter2" not in caplog.text


def test_valkeys_schemes_are_those_of_redis(redis_server, settings):
    settings(SAFECACHE_REMOTE=redis_server.url.replace("redis://", "valkey://"), SAFECACHE_REMOTE_TTL="1h")
    client.current().write("a", b"content")
    assert redis_server.client().get("a") == b"content" and 0 < redis_server.client().ttl("a") <= 3600


@pytest.fixture
def cluster(new_redis):
    """Three nodes, each of which has a third of the names."""
    nodes = [new_redis("--cluster-enabled", "yes", "--cluster-node-timeout", "2000") for _ in range(3)]
    slots = [(0, 5460), (5461, 10922), (10923, 16383)]
    for node, (first, last) in zip(nodes, slots, strict=True):
        node.client().execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
        nodes[0].client().execute_command("CLUSTER", "MEET", "127.0.0.1", node.port)
    for _ in range(300):
        states = [node.client().execute_command("CLUSTER", "INFO") for node in nodes]
        if all(b"cluster_state:ok" in state for state in states):
            return nodes
        time.sleep(0.1)
    raise AssertionError(states)


def test_cluster_is_refused_by_name(cluster, settings, caplog):
    settings(SAFECACHE_REMOTE=cluster[0].url, SAFECACHE_REMOTE_TIMEOUT="20")
    names = [f"name {number}" for number in range(20)]
    with pytest.raises(client.Unavailable):
        client.current().read_unverified(names)
    assert "a node of a Redis Cluster, which is not supported: use" in caplog.text
    caplog.clear()
    with pytest.raises(client.Unavailable):
        [client.get_background().write(name, b"content") for name in names]
    assert "a node of a Redis Cluster, which is not supported: use" in caplog.text


# Eight threads, each looking up one key after the other, and sending what nobody has: with contents that tell the key.
CLIENT = """
import base64, hashlib, json, os, random, sys, threading
from pathlib import Path
from safecache.places import layout
from safecache.features import plug
from safecache.remote import client, exchange, parcels, sender
from safecache.places.refs import Ref
from safecache.reporting import events
from safecache.reporting.kinds import Kind
from safecache.signing import keyring, provenance, seal
from safecache.store import bundles, entry_files

base, number, wrong, found = Path(sys.argv[1]), int(sys.argv[2]), [], []

def key_of(number):
    return "f" + base64.b32encode(hashlib.sha256(b"%d" % number).digest())[:51].decode().lower()

def payload(key):
    return random.Random(key).randbytes(100_000)

def work(thread):
    choose, root = random.Random(f"{number} {thread}"), str(base / f"{number}-{thread}")
    for _ in range(25):
        key = key_of(choose.randrange(400))
        bundle = Ref(Kind.FX_ENTRY, key, root)
        exchange._state.reset()
        try:
            if bundles.fetch(bundle):
                contents = [seal.strip_unverified(Path(bundle.name_file(name).path).read_bytes()) for name in bundle.list_names()]
                found.append(key)
                wrong.extend(content for content in contents if content != payload(key))
                continue
            signing, built = keyring.current().signing, provenance.make_statement(Kind.FX_ENTRY)
            content = seal.attach(payload(key), Kind.FX_ENTRY, key, signing, built)
            entry_files.publish(bundle.name_file(layout.name_entry(content)).path, content, root)
            sender.send(client.get_background(), bundle)
        except client.Unavailable:
            wrong.append("unavailable")
        except Exception as error:
            wrong.append(repr(error))

plug()
threads = [threading.Thread(target=work, args=(each,)) for each in range(8)]
[each.start() for each in threads]
[each.join() for each in threads]
print(json.dumps({"wrong": [str(each)[:200] for each in wrong], "found": len(found), "counters": events.read_counters()}))
"""


def test_sixty_four_clients_of_a_server_that_evicts(new_redis, home, tmp_path):
    server = new_redis("--maxmemory", "24mb", "--maxmemory-policy", "allkeys-lru")
    home.keys.mkdir(parents=True)
    environment = os.environ | home.environment | {"SAFECACHE_REMOTE": server.url, "PYTHONPATH": str(SOURCE)}
    # The machine may be busy, and nothing here is about time.
    environment |= {"SAFECACHE_REMOTE_TIMEOUT": "60", "SAFECACHE_REMOTE_CONNECT": "60"}
    first = [sys.executable, "-c", "from safecache.signing import keyring; assert keyring.current().signing"]
    subprocess.run(first, env=environment, check=True)
    commands = [[sys.executable, "-c", CLIENT, str(tmp_path), str(number)] for number in range(8)]
    running = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for command in commands]
    said = [json.loads(process.communicate(timeout=300)[0]) for process in running]
    assert [each["wrong"] for each in said] == [[]] * 8
    assert sum(each["found"] for each in said) > 50
    assert server.client().info("stats")["evicted_keys"] > 0
    refused = {"damaged", "bad seal", "unsealed", "remote unavailable"}
    assert not any(refused & each["counters"].keys() for each in said), said


def test_names_of_one_namespace_do_not_show_in_another(redis_server, settings):
    settings(SAFECACHE_REMOTE=redis_server.url, SAFECACHE_NAMESPACE="team/a")
    client.current().write(f"{stores.make_prefix()}x", b"1")
    settings(SAFECACHE_REMOTE=redis_server.url, SAFECACHE_NAMESPACE="team")
    assert not list(client.get_background().list_names(stores.make_prefix())), config.current().namespace


def test_process_that_ends_after_a_request_of_an_object_store(s3):
    """Each of obstore's functions for asyncio aborts one in six such processes."""
    make_bucket("ends-soon", s3)
    ask = (
        "from safecache.remote import stores\n"
        "store = stores.make_store('s3://ends-soon', stores.Terms(20, 20, 1 << 20))\n"
        "store.write('a', b'content')\n"
        "assert store.find_sizes(['a', 'b']) == {'a': 7} and store.read_unverified_starts(['a', 'b'], 3) == {'a': b'con'}\n"
        "assert store.read_unverified(['a', 'b']) == {'a': b'content'}"
    )

    def run(_: int) -> tuple[int, str]:
        done = subprocess.run([sys.executable, "-c", ask], env=os.environ | s3, capture_output=True, text=True)
        return done.returncode, done.stderr

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(run, range(40))) == {(0, "")}
