"""A pack goes to a real registry and comes back as it was, over TLS and with a password too, and for skopeo as well."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("requests")
pytest.importorskip("docker")

from safecache.errors import RegistryError
from safecache.upkeep import oci, registry
from safecache.upkeep.registry import Registry

from .conftest import PASSWORD

MADE_WITH = {"torch": "2.15.0", "machine": "x86_64", "gpu": "sm_90a", "servers": {"vllm": "0.33"}, "cpu": ""}
FORMS = pytest.mark.parametrize("as_image", [False, True], ids=["artifact", "image"])


def at(served, name="team/model", tag="v1", **options):
    to = registry.parse(f"oci://{served.host}/{name}:{tag}")
    return to, Registry(to.host, to.name, plain=not served.authorities, authorities=served.authorities, **options)


def manifest(there, tag):
    content, _ = there.manifest(tag)
    return json.loads(content)


@FORMS
def test_what_is_pushed_is_fetched_as_it_was(served, pack, tmp_path, as_image):
    to, there = at(served)
    pushed = oci.push(to, str(pack), MADE_WITH, there, as_image=as_image)
    assert pushed.size >= pack.stat().st_size
    (tmp_path / "there").mkdir()
    for what in (to, registry.parse(f"oci://{pushed.reference}")):
        with oci.fetched(what, there, str(tmp_path / "there"), 1 << 30) as found:
            assert Path(found.path).read_bytes() == pack.read_bytes()
            assert (found.digest, found.size) == (pushed.digest, pack.stat().st_size)
            assert found.annotations["vnd.safecache.made-with.servers.vllm"] == "0.33"
            assert "vnd.safecache.made-with.cpu" not in found.annotations
    assert list((tmp_path / "there").iterdir()) == []


@FORMS
def test_the_same_pack_has_the_same_digest_and_is_not_sent_again(served, pack, as_image):
    to, there = at(served, tag="again")
    first = oci.push(to, str(pack), MADE_WITH, there, as_image=as_image)
    assert oci.push(to, str(pack), MADE_WITH, there, as_image=as_image) == first._replace(size=0)


def test_the_artifact_says_what_it_is(served, pack):
    to, there = at(served, tag="says")
    oci.push(to, str(pack), MADE_WITH, there)
    found = manifest(there, "says")
    (layer,) = found["layers"]
    assert (found["artifactType"], layer["mediaType"]) == (oci.ARTIFACT, f"{oci.ARTIFACT}.tar+zstd")
    assert layer["digest"] == f"sha256:{hashlib.sha256(pack.read_bytes()).hexdigest()}"


def test_over_tls_with_a_password(private, pack, tmp_path, logins):
    to, there = at(private)
    logins(private.host)
    oci.push(to, str(pack), MADE_WITH, there)
    with oci.fetched(to, there, str(tmp_path), 1 << 30) as found:
        assert Path(found.path).read_bytes() == pack.read_bytes()


@pytest.mark.parametrize("password", [None, "wrong-but-secret"])
def test_without_the_password_the_remedy_is_named_and_nothing_else(private, pack, logins, password):
    to, there = at(private)
    if password:
        logins(private.host, password)
    with pytest.raises(RegistryError, match=f"docker login {private.host}") as refusal:
        oci.push(to, str(pack), MADE_WITH, there)
    assert PASSWORD not in str(refusal.value)
    assert "wrong-but-secret" not in str(refusal.value)


def test_a_certificate_that_nobody_has_vouched_for_is_refused(private, pack, logins):
    logins(private.host)
    to, _ = at(private)
    with pytest.raises(RegistryError, match="not whom its certificate should show: self-signed") as refusal:
        oci.push(to, str(pack), MADE_WITH, Registry(to.host, to.name))
    assert PASSWORD not in str(refusal.value)


def test_what_is_not_there_is_named(served, tmp_path):
    to, there = at(served, name="nobody/here")
    with pytest.raises(RegistryError, match=f"there is no {served.host}/nobody/here:v1"), oci.fetched(to, there, "", 1):
        pass


def test_a_registry_that_is_not_there_is_named_without_the_url(pack):
    to = registry.parse("oci://127.0.0.1:1/team/model:v1")
    with pytest.raises(RegistryError, match=r"^127\.0\.0\.1:1 cannot be reached: Connection refused$"):
        oci.push(to, str(pack), MADE_WITH, Registry(to.host, to.name, plain=True))


@pytest.fixture
def signer():
    keys = pytest.importorskip("safecache.signing.keys")
    pytest.importorskip("cryptography")
    secret = keys.generate()
    return keys.Key.ed25519(keys.public_of(secret), secret)


def test_signatures_are_those_that_cosign_reads(served, pack, signer, tmp_path):
    """As its specification has them: https://github.com/sigstore/cosign/blob/main/specs/SIGNATURE_SPEC.md."""
    to, there = at(served, tag="signed")
    pushed = oci.push(to, str(pack), MADE_WITH, there)
    tag = oci.sign(to, pushed.digest, signer, there)
    assert tag == f"sha256-{pushed.digest[len('sha256:') :]}.sig"
    assert oci.sign(to, pushed.digest, signer, there) == tag
    found = manifest(there, tag)
    (layer,) = found["layers"]
    assert layer["mediaType"] == "application/vnd.dev.cosign.simplesigning.v1+json"
    with open(tmp_path / "payload", "w+b") as payload:
        there.download(registry.Blob(layer["digest"], layer["size"]), payload)
    content = (tmp_path / "payload").read_bytes()
    critical = json.loads(content)["critical"]
    assert critical["image"] == {"docker-manifest-digest": pushed.digest}
    assert critical["identity"] == {"docker-reference": f"{served.host}/team/model"}
    assert critical["type"] == "cosign container image signature"
    import base64

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    signature = base64.b64decode(layer["annotations"]["dev.cosignproject.cosign/signature"])
    Ed25519PublicKey.from_public_bytes(signer.public).verify(signature, content)


def test_signatures_of_others_stay(served, pack, signer):
    from safecache.signing import keys

    secret = keys.generate()
    to, there = at(served, tag="twice")
    pushed = oci.push(to, str(pack), MADE_WITH, there)
    tag = oci.sign(to, pushed.digest, signer, there)
    before = manifest(there, tag)["layers"]
    oci.sign(to, pushed.digest, keys.Key.ed25519(keys.public_of(secret), secret), there)
    assert manifest(there, tag)["layers"][:1] == before
    assert len(manifest(there, tag)["layers"]) == 2


def skopeo(*words):
    if shutil.which("skopeo") is None:
        pytest.skip("skopeo is not installed")
    done = subprocess.run(["skopeo", *map(str, words)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_skopeo_shows_and_copies_the_artifact(served, pack, tmp_path):
    to, there = at(served, tag="copied")
    pushed = oci.push(to, str(pack), MADE_WITH, there)
    source = f"docker://{served.host}/team/model"
    raw = skopeo("inspect", "--raw", "--tls-verify=false", f"{source}:copied")
    assert f"sha256:{hashlib.sha256(raw.encode()).hexdigest()}" == pushed.digest
    insecure = ("--insecure-policy", "copy", "--src-tls-verify=false", "--dest-tls-verify=false")
    skopeo(*insecure, f"{source}:copied", f"oci:{tmp_path / 'layout'}:v1")
    skopeo(*insecure, f"oci:{tmp_path / 'layout'}:v1", f"docker://{served.host}/other/place:v2")
    elsewhere, there = at(served, name="other/place", tag="v2")
    with oci.fetched(elsewhere, there, str(tmp_path), 1 << 30) as found:
        assert Path(found.path).read_bytes() == pack.read_bytes()
        assert found.digest == pushed.digest


def test_the_image_is_one_for_skopeo_with_the_labels_and_the_layer_that_mcv_reads(served, pack, tmp_path):
    """What extractCompatImg() of MCV takes: a layer of tar and gzip, and labels that tell the kind and the GPU."""
    to, there = at(served, tag="image")
    oci.push(to, str(pack), MADE_WITH, there, as_image=True)
    found = json.loads(skopeo("inspect", "--tls-verify=false", f"docker://{served.host}/team/model:image"))
    labels = found["Labels"]
    targets = json.loads(labels["cache.triton.image/summary"])["targets"]
    assert targets == [{"backend": "cuda", "arch": "90", "warp_size": 32}]
    assert labels["cache.triton.image/cache-size-bytes"] == str(pack.stat().st_size)
    (layer,) = manifest(there, "image")["layers"]
    assert layer["mediaType"] == "application/vnd.oci.image.layer.v1.tar+gzip"
    with open(tmp_path / "layer", "w+b") as file:
        there.download(registry.Blob(layer["digest"], layer["size"]), file)
    (tmp_path / "unpacked").mkdir()
    subprocess.run(["tar", "-xzf", tmp_path / "layer", "-C", tmp_path / "unpacked"], check=True)
    assert (tmp_path / "unpacked/io.triton.cache/model.safecache").read_bytes() == pack.read_bytes()
    assert json.loads((tmp_path / "unpacked/io.triton.manifest/manifest.json").read_text()) == {"triton": []}
    # What a container runtime compares after it has unpacked the layer.
    skopeo(
        "--insecure-policy",
        "copy",
        "--src-tls-verify=false",
        f"docker://{served.host}/team/model:image",
        f"dir:{tmp_path / 'dir'}",
    )
    config = manifest(there, "image")["config"]["digest"].partition(":")[2]
    (diff,) = json.loads((tmp_path / "dir" / config).read_text())["rootfs"]["diff_ids"]
    plain = subprocess.run(["gzip", "-dc", tmp_path / "layer"], capture_output=True, check=False).stdout
    plain = (
        plain
        or subprocess.run(
            ["gzip", "-dc"], input=(tmp_path / "layer").read_bytes(), capture_output=True, check=True
        ).stdout
    )
    assert diff == f"sha256:{hashlib.sha256(plain).hexdigest()}"
