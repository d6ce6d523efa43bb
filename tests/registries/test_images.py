"""A pack goes to a real registry as an image and comes back as it was; whatever else a registry has is refused."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import subprocess
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from safecache.errors import RegistryError
from safecache.upkeep import oci

from .conftest import PASSWORD

MADE_WITH = {"torch": "2.15.0", "machine": "x86_64", "gpu": "sm_90a", "servers": {"vllm": "0.33"}, "cpu": ""}
PACK = b"stands for a pack: what is in it is none of the registry's business" * 40_000
MOST = 1 << 30


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """A directory for temporary files, where nothing may be left."""
    directory = tmp_path / "tmp"
    directory.mkdir()
    monkeypatch.setenv("TMPDIR", str(directory))
    monkeypatch.setattr("tempfile.tempdir", None)
    yield directory
    assert list(directory.iterdir()) == []


@pytest.fixture
def pack(tmp_path):
    path = tmp_path / "a.safecache"
    path.write_bytes(PACK)
    return str(path)


@pytest.fixture
def to(served, request):
    """An image of the test's own."""
    return oci.parse_reference(f"oci://{served.host}/team/{request.node.originalname}:v1")


def push(to, pack):
    return oci.push(to, pack, MADE_WITH, has_tls=False)


def fetch(reference, most=MOST):
    with oci.fetch(reference, most, has_tls=False) as (path, found):
        return Path(path).read_bytes(), str(found)


def skopeo(*words):
    done = subprocess.run(["skopeo", *map(str, words)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_is_pushed_is_fetched_as_it_was(to, pack):
    pushed = push(to, pack)
    assert fetch(to) == fetch(oci.parse_reference(f"oci://{pushed}")) == (PACK, str(pushed))
    assert push(to, pack) == pushed, "the same pack has another digest"


def test_the_image_has_the_labels_and_the_layer_that_mcv_reads(to, pack, tmp_path):
    """What extractCompatImg() of MCV takes: a layer of tar and gzip, and labels that tell the kind and the GPU."""
    push(to, pack)
    labels = json.loads(skopeo("inspect", "--tls-verify=false", f"docker://{to}"))["Labels"]
    targets = json.loads(labels["cache.triton.image/summary"])["targets"]
    assert targets == [{"backend": "cuda", "arch": "90", "warp_size": 32}]
    assert labels["cache.triton.image/cache-size-bytes"] == str(len(PACK))
    skopeo("copy", "--src-tls-verify=false", f"docker://{to}", f"dir:{tmp_path / 'dir'}")
    manifest = json.loads((tmp_path / "dir/manifest.json").read_text())
    assert manifest["annotations"]["vnd.safecache.made-with.servers.vllm"] == "0.33"
    assert "vnd.safecache.made-with.cpu" not in manifest["annotations"]
    blob = {
        part["mediaType"]: tmp_path / "dir" / part["digest"][7:] for part in (manifest["config"], *manifest["layers"])
    }
    layer = gzip.decompress(blob["application/vnd.oci.image.layer.v1.tar+gzip"].read_bytes())
    config = json.loads(blob["application/vnd.oci.image.config.v1+json"].read_text())
    # What a container runtime compares after it has unpacked the layer.
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(layer).hexdigest()}"]
    with tarfile.open(fileobj=io.BytesIO(layer)) as files:
        found = {each.name: files.extractfile(each).read() for each in files}
    assert found == {"io.triton.cache/model.safecache": PACK, "io.triton.manifest/manifest.json": b'{"triton":[]}'}


def test_docker_s_form_of_it_is_taken_too(to, pack):
    """As some registries and tools make it."""
    push(to, pack)
    insecure = ("--src-tls-verify=false", "--dest-tls-verify=false")
    skopeo("copy", "--format=v2s2", *insecure, f"docker://{to}", f"docker://{to._replace(tag='docker')}")
    assert fetch(to._replace(tag="docker"))[0] == PACK


def test_over_tls_with_a_password(private, pack, logins, monkeypatch):
    to = oci.parse_reference(f"oci://{private.host}/team/model:v1")
    monkeypatch.setenv("SSL_CERT_FILE", private.authorities)
    logins(private.host)
    oci.push(to, pack, MADE_WITH)
    with oci.fetch(to, MOST) as (path, _):
        assert Path(path).read_bytes() == PACK


@pytest.mark.parametrize("password", [None, "wrong-but-secret"])
def test_without_the_password_the_remedy_is_named_and_nothing_else(private, pack, logins, password, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", private.authorities)
    if password:
        logins(private.host, password)
    with pytest.raises(RegistryError, match="docker login") as refusal:
        oci.push(oci.parse_reference(f"oci://{private.host}/team/model:v1"), pack, MADE_WITH)
    assert PASSWORD not in str(refusal.value)
    assert "wrong-but-secret" not in str(refusal.value)


def test_a_certificate_that_nobody_has_vouched_for_is_refused(private, pack, logins):
    logins(private.host)
    with pytest.raises(RegistryError, match="certificate") as refusal:
        oci.push(oci.parse_reference(f"oci://{private.host}/team/model:v1"), pack, MADE_WITH)
    assert PASSWORD not in str(refusal.value)


def test_a_registry_that_is_not_there(pack):
    with pytest.raises(RegistryError, match=r"^127\.0\.0\.1:1/team/model:v1: skopeo says: .*connection refused$"):
        push(oci.parse_reference("oci://127.0.0.1:1/team/model:v1"), pack)


@pytest.mark.parametrize(
    "text",
    [
        "registry/a:v1",
        "oci://",
        "oci://a.b",
        "oci://a.b/C:v1",
        "oci://a.b/c:v1:v2",
        "oci://a.b/c@sha256:00",
        "oci://a.b/../c:v1",
        "oci://-a/b:v1",
        "oci://user:secret@a.b/c:v1",
        "oci://a.b/c:v1\n",
        "oci://a.b/c?d:v1",
    ],
)
def test_what_is_no_reference_is_refused_and_not_shown(text):
    with pytest.raises(RegistryError, match="no reference") as refusal:
        oci.parse_reference(text)
    assert "secret" not in str(refusal.value)


def test_references():
    digest = "sha256:" + "0" * 64
    for text, shown in (
        ("a.b/c", "a.b/c:latest"),
        ("a.b:5000/c/d__e:v1.2", "a.b:5000/c/d__e:v1.2"),
        (f"a.b/c:v1@{digest}", f"a.b/c@{digest}"),
        ("[::1]:5000/c:v1", "[::1]:5000/c:v1"),
    ):
        assert str(oci.parse_reference(f"oci://{text}")) == shown
    with pytest.raises(RegistryError, match="gets a tag"):
        oci.push(oci.parse_reference(f"oci://a.b/c@{digest}"), "", {})


# --- images that are no packs, with digests that are right: whoever may write to the registry has made them


@pytest.fixture
def forge(to, pack, tmp_path, monkeypatch):
    """Pushes the image of a pack after a change of its layer's parts, or of the manifest."""

    def make(layer=None, manifest=None):
        if layer is not None:
            monkeypatch.setattr(oci, "_split_tar", lambda *_: iter(layer))
        if manifest is not None:
            written = oci._write_blob
            monkeypatch.setattr(
                oci,
                "_write_blob",
                lambda image, kind, content: written(
                    image,
                    kind,
                    json.dumps(manifest(json.loads(content))).encode() if kind == oci._MANIFEST else content,
                ),
            )
        push(to, pack)

    return make


def member(content=PACK, **how):
    about = tarfile.TarInfo("io.triton.cache/model.safecache")
    about.size = len(content)
    for name, value in how.items():
        setattr(about, name, value)
    return about.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % 512)


@pytest.mark.parametrize(
    ("layer", "why"),
    [
        ([b""], "ends too early"),
        ([b"no tar" * 1000], "no tar"),
        ([member()[:-100_000]], "ends too early"),
        ([member(name="../model.safecache")], "no pack of safecache"),
        ([member(name="/etc/passwd")], "no pack of safecache"),
        ([member(b"", type=tarfile.SYMTYPE, linkname="/etc/passwd")], "no pack of safecache"),
        ([member(b"", type=tarfile.GNUTYPE_SPARSE)], "no pack of safecache"),
        ([member(b"18 path=/etc/passwd\n", type=tarfile.XHDTYPE, name="pax")], "no pack of safecache"),
        ([member(b"x", size=1 << 60)], "no pack of safecache"),
        ([member(b"x", size=1000)], "ends too early"),
    ],
)
def test_another_layer(forge, to, layer, why):
    forge(layer=layer)
    with pytest.raises(RegistryError, match=f"{to} is refused: .*{why}"):
        fetch(to)


def test_a_layer_that_is_no_gzip(forge, to, monkeypatch):
    class Plain:
        compress, flush = staticmethod(bytes), staticmethod(bytes)

    monkeypatch.setattr(oci.zlib, "compressobj", lambda *_, **__: Plain)
    forge()
    monkeypatch.undo()
    with pytest.raises(RegistryError, match=f"{to} is refused: its layer is no gzip"):
        fetch(to)


def test_a_layer_that_grows(forge, to, monkeypatch):
    """A gigabyte of zeros in a megabyte."""
    import zlib

    made = zlib.compressobj
    monkeypatch.setattr(oci.zlib, "compressobj", lambda *_, **how: made(9, **how))
    zeros = bytes(1 << 20)
    forge(layer=[member(b"", size=1 << 30), *[zeros] * 1024])
    with pytest.raises(RegistryError, match=f"{to} is refused: it is no pack of safecache, .*at most 5.0 MB"):
        fetch(to, 5_000_000)


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: {**manifest, "layers": []},
        lambda manifest: {**manifest, "layers": manifest["layers"] * 2},
        lambda manifest: {
            **manifest,
            "layers": [{**manifest["layers"][0], "mediaType": "application/vnd.oci.image.layer.v1.tar"}],
        },
    ],
    ids=["none", "two", "kind"],
)
def test_other_layers(forge, to, change):
    forge(manifest=change)
    with pytest.raises(
        RegistryError, match=f"{to} is refused: it is no pack of safecache, which is an image of one layer"
    ):
        fetch(to)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"\xff",
        b"[" * 100_000,
        b"[]",
        b'{"layers": [{}]}',
        b'{"layers": {"a": 1}}',
        b'{"layers": [{"mediaType": "%s", "digest": "sha256:../../x", "size": 1}]}' % oci._LAYER.encode(),
        b'{"layers": [{"mediaType": "%s", "digest": "sha256:%s", "size": -1}]}' % (oci._LAYER.encode(), b"0" * 64),
        b'{"layers": [{"mediaType": "%s", "digest": "sha256:%s", "size": true}]}' % (oci._LAYER.encode(), b"0" * 64),
        b'{"layers": [{"mediaType": ["%s"], "digest": 7, "size": 1}]}' % oci._LAYER.encode(),
    ],
)
def test_a_manifest_that_is_none(said, to):
    with pytest.raises(RegistryError, match="no pack of safecache"):
        oci._read_unverified_layer(said, to)


def test_a_pack_larger_than_is_allowed_is_not_fetched(to, pack):
    push(to, pack)
    with pytest.raises(RegistryError, match="more than the 1000 that are allowed"):
        fetch(to, 1000)


# --- a registry that lies


class Liar(BaseHTTPRequestHandler):
    """Answers with the bytes of ``said`` by the end of a path; an int stands for so many bytes, a float for seconds."""

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.send_response(200)
        end = self.path.rpartition("/")[2]
        kind = oci._MANIFEST if "/manifests/" in self.path else "application/octet-stream"
        self.send_header("Content-Type", kind)
        self.end_headers()
        try:
            for part in self.server.said.get(end, [b"{}"]):
                if isinstance(part, float):
                    self.server.ended.wait(part)
                for _ in range(part if isinstance(part, int) else 0):
                    self.wfile.write(bytes(1 << 20))
                self.wfile.write(part if isinstance(part, bytes) else b"")
        except OSError:
            self.close_connection = True

    do_HEAD = do_GET


@pytest.fixture
def liar():
    if shutil.which("skopeo") is None:
        pytest.skip("skopeo is not installed")
    server = HTTPServer(("127.0.0.1", 0), Liar)
    server.said, server.ended = {}, threading.Event()
    server.reference = oci.parse_reference(f"oci://127.0.0.1:{server.server_address[1]}/a:v1")
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server
    server.ended.set()
    server.shutdown()
    server.server_close()
    thread.join()


def manifest_of(layer: bytes, size: int) -> bytes:
    config = {"mediaType": oci._CONFIG, "digest": oci._digest_content(b"{}"), "size": 2}
    described = {"mediaType": oci._LAYER, "digest": oci._digest_content(layer), "size": size}
    return oci._dump_json({"schemaVersion": 2, "mediaType": oci._MANIFEST, "config": config, "layers": [described]})


def lie(liar, layer: bytes, size: int, said: list) -> None:
    manifest = manifest_of(layer, size)
    liar.said |= {"v1": [manifest], oci._digest_content(manifest): [manifest], oci._digest_content(layer): said}


def test_another_layer_than_it_has_stated(liar):
    lie(liar, b"one", 3, [b"two"])
    with pytest.raises(RegistryError, match=r"[Dd]igest"):
        fetch(liar.reference)


def test_another_manifest_than_was_asked_for(liar):
    reference = liar.reference._replace(digest="sha256:" + "0" * 64)
    liar.said[reference.digest] = [manifest_of(b"", 0)]
    with pytest.raises(RegistryError, match="is refused: its registry sent sha256:"):
        fetch(reference)


def test_a_layer_without_an_end_fills_no_disk(liar):
    lie(liar, b"x", 1, [100_000])
    with pytest.raises(RegistryError, match="file too large"):
        fetch(liar.reference)


def test_a_manifest_without_an_end_is_not_held(liar):
    liar.said["v1"] = [100_000]
    with pytest.raises(RegistryError, match="maximum allowed size"):
        fetch(liar.reference)


def test_a_registry_that_drips_is_left_after_a_while(liar, monkeypatch):
    monkeypatch.setattr(oci, "_PATIENCE_S", 2.0)
    liar.said["v1"] = [b" ", *[0.2, b" "] * 1000]
    with pytest.raises(RegistryError, match="took longer than 2 s"):
        fetch(liar.reference)


def test_a_signature_in_a_url_is_not_shown():
    line = (
        'time="2026-01-01T00:00:00Z" level=fatal msg="Get \\"https://b.c/d?X-Signature=secret\\": dial tcp: refused"\n'
    )
    said = oci._describe_failure(line, 1)
    assert said == 'skopeo says: Get "https://b.c/d?…": dial tcp: refused'
    assert oci._describe_failure("", -25) == "skopeo ended with -25"
