"""A real registry, with and without TLS and logins."""

from __future__ import annotations

import base64
import datetime
import ipaddress
import json
import shutil
import subprocess

import pytest
from helpers.in_process import isolated, run, settings
from remote.conftest import await_port, free_port

__all__ = ["isolated", "run", "settings"]

USER, PASSWORD = "somebody", "a-secret-of-theirs"
# By bcrypt, which alone the registry takes.
_HASH = "$2b$05$abcdefghijklmnopqrstuuogTfUfsdmUxQcOsfX0WjpLbqlN8NXPu"


@pytest.fixture(autouse=True)
def logins(tmp_path, monkeypatch):
    """Writes docker's file of logins, which is empty before that."""
    directory = tmp_path / "docker"
    directory.mkdir()
    monkeypatch.setenv("DOCKER_CONFIG", str(directory))
    monkeypatch.setenv("HOME", str(directory))

    def write(host: str, password: str = PASSWORD) -> None:
        pair = base64.b64encode(f"{USER}:{password}".encode()).decode()
        (directory / "config.json").write_text(json.dumps({"auths": {host: {"auth": pair}}}))

    (directory / "config.json").write_text('{"auths": {}}')
    return write


class Served:
    """A docker-registry of this test run."""

    def __init__(self, directory, **http) -> None:
        self.host = f"127.0.0.1:{free_port()}"
        self.authorities = http.get("tls", {}).get("certificate", "")
        auth = {"htpasswd": {"realm": "here", "path": str(directory / "users")}} if self.authorities else {}
        (directory / "users").write_text(f"{USER}:{_HASH}\n")
        settings = {
            "version": 0.1,
            "log": {"level": "error", "accesslog": {"disabled": True}},
            "storage": {"filesystem": {"rootdirectory": str(directory / "store")}},
            "http": {"addr": self.host} | http,
        } | ({"auth": auth} if auth else {})
        (directory / "settings.yml").write_text(json.dumps(settings))
        command = ["docker-registry", "serve", str(directory / "settings.yml")]
        with open(directory / "log", "w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        await_port(int(self.host.rpartition(":")[2]), self.process)

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(20)


def _served(directory, **http):
    if shutil.which("docker-registry") is None or shutil.which("skopeo") is None:
        pytest.skip("docker-registry or skopeo is not installed")
    served = Served(directory, **http)
    yield served
    served.close()


@pytest.fixture(scope="session")
def served(tmp_path_factory):
    """One without TLS and logins."""
    yield from _served(tmp_path_factory.mktemp("registry"))


@pytest.fixture(scope="session")
def private(tmp_path_factory, certificate):
    """One with TLS, for whoever has the password."""
    certificate, key = certificate
    yield from _served(tmp_path_factory.mktemp("private"), tls={"certificate": certificate, "key": key})


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    """Files of a certificate for this machine, signed by itself, and of its key."""
    pytest.importorskip("cryptography")
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a registry")])
    now = datetime.datetime.now(datetime.timezone.utc)
    built = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(True, None), True)
        .sign(key, hashes.SHA256())
    )
    directory = tmp_path_factory.mktemp("certificate")
    plain = serialization.NoEncryption()
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (directory / "certificate.pem").write_bytes(built.public_bytes(encoding))
    (directory / "key.pem").write_bytes(key.private_bytes(encoding, form, plain))
    return str(directory / "certificate.pem"), str(directory / "key.pem")
