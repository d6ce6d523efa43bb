"""A registry that lies, or somebody on the way: it is refused by name, nothing of it stays, and it gets no password."""

from __future__ import annotations

import base64
import contextlib
import gzip
import itertools
import json
import os
import subprocess
import sys
import tarfile
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from conftest import SOURCE

pytest.importorskip("requests")
pytest.importorskip("docker")

from safecache.errors import RegistryError
from safecache.upkeep import oci, registry
from safecache.upkeep.registry import Registry

from .conftest import PASSWORD, USER

INDEX = "application/vnd.oci.image.index.v1+json"
MOST = 8 << 20
_BASIC = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()


def at(server, tag="v1", **options):
    to = registry.parse(f"oci://{server.host}/team/model:{tag}")
    return to, Registry(to.host, to.name, **({"plain": True} | options))


@pytest.fixture
def pushed(liar, pack):
    to, there = at(liar)
    found = oci.push(to, str(pack), {}, there)
    liar.asked.clear()
    return found


@pytest.fixture
def fetch(liar, pushed, tmp_path):
    """Fetch the pack, with nothing left behind; its content."""
    target = tmp_path / "target"
    target.mkdir()

    def fetch(tag="v1", most=MOST, **options):
        before = sorted(tmp_path.rglob("*"))
        digest = tag if tag.startswith("sha256:") else ""
        what, there = at(liar, "v1" if digest else tag, **options)
        what = what._replace(digest=digest)
        try:
            with oci.fetched(what, there, str(target), most) as found:
                return Path(found.path).read_bytes()
        finally:
            assert sorted(tmp_path.rglob("*")) == before

    return fetch


@pytest.fixture
def refused(fetch):
    """The pack is not taken, for this reason."""

    def refused(match, *arguments, **options):
        with pytest.raises(RegistryError, match=match) as refusal:
            fetch(*arguments, **options)
        assert PASSWORD not in str(refusal.value)
        assert "127.0.0.1:" in str(refusal.value)

    return refused


def blob_of(liar, pushed):
    (layer,) = json.loads(liar.content[pushed.digest.partition("@")[2] or "v1"])["layers"]
    return layer["digest"]


def change(liar, pushed, **fields):
    """The manifest with other fields, or of its layer, or without those that are None."""
    found = json.loads(liar.content["v1"])
    for name, value in fields.items():
        part = (
            found
            if name in {"schemaVersion", "mediaType", "artifactType", "layers", "annotations"}
            else found["layers"][0]
        )
        part = found["layers"][0] if name == "kind" else part
        part["mediaType" if name == "kind" else name] = value
    liar.content["v1"] = json.dumps(found).encode()


def test_an_honest_one_is_believed(fetch, pack):
    assert fetch() == pack.read_bytes()


def test_a_manifest_of_another_digest(liar, pushed, fetch, refused, pack):
    liar.content[pushed.digest] = liar.content["v1"]
    assert fetch(pushed.digest) == pack.read_bytes()
    liar.content[pushed.digest] = liar.content["v1"] + b" "
    refused(f"in place of {pushed.digest}", pushed.digest)


def test_a_manifest_that_is_not_what_its_header_says(liar, refused):
    liar.answer(
        "GET",
        "/manifests/v1",
        lambda said: said.say(200, liar.content["v1"], Docker_Content_Digest="sha256:" + "0" * 64),
    )
    refused("says that it is sha256:0000")


def test_a_manifest_without_end(liar, refused):
    liar.answer("GET", "/manifests/v1", lambda said: said.stream(b" " * 65536, 1 << 20))
    refused(f"the manifest v1 is larger than {4 << 20} bytes")


@pytest.mark.parametrize(
    "content", [b"", b"\xff", b"[", b"[" * 200_000, b"1", b"[]", b'{"a":' + b"9" * 5000 + b"}"], ids=len
)
def test_a_manifest_that_is_none(liar, refused, content):
    liar.content["v1"] = content
    refused("is refused: its manifest is no JSON")


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"mediaType": INDEX}, "it is an index"),
        ({"mediaType": "application/vnd.docker.distribution.manifest.v2+json"}, "it is no pack"),
        ({"artifactType": "application/vnd.cncf.model.v1"}, "it is no pack"),
        ({"artifactType": None}, "it is no pack"),
        ({"schemaVersion": 1}, "it is no pack"),
        ({"layers": []}, "one layer"),
        ({"layers": None}, "one layer"),
        ({"layers": {"0": {}}}, "one layer"),
        ({"layers": [{}, {}]}, "one layer"),
        ({"layers": ["sha256:"]}, "one layer"),
        ({"kind": "application/octet-stream"}, "its layer is no application/vnd.safecache"),
        ({"kind": ["a"]}, "its layer is no application/vnd.safecache"),
        ({"digest": "sha256:../../../../etc/passwd"}, "states no digest"),
        ({"digest": "sha512:" + "0" * 128}, "states no digest"),
        ({"digest": "sha256:" + "0" * 64 + "\n"}, "states no digest"),
        ({"digest": 5}, "states no digest"),
        ({"size": -1}, "states no size"),
        ({"size": True}, "states no size"),
        ({"size": 3.0}, "states no size"),
        ({"size": "3000001"}, "states no size"),
        ({"size": None}, "states no size"),
    ],
)
def test_a_manifest_of_something_else(liar, pushed, refused, fields, match):
    change(liar, pushed, **fields)
    refused(match)


def test_an_index_by_its_content_type_alone(liar, refused):
    liar.answer(
        "GET", "/manifests/v1", lambda said: said.say(200, b'{"schemaVersion": 2, "manifests": []}', Content_Type=INDEX)
    )
    refused("name one of them by its digest")


def test_a_pack_larger_than_is_allowed_is_not_begun(liar, pushed, refused):
    refused("more than the 1000 that are allowed", most=1000)
    assert not [path for _, path, _ in liar.asked if "/blobs/" in path]


def test_a_title_is_no_path(liar, pushed, fetch, pack):
    change(liar, pushed, annotations={"org.opencontainers.image.title": "../../evil", "a": 5, "b": ["c"]})
    found = json.loads(liar.content["v1"])
    found["layers"][0]["annotations"] = {"org.opencontainers.image.title": "/etc/evil"}
    liar.content["v1"] = json.dumps(found).encode()
    assert fetch() == pack.read_bytes()


def test_another_blob_of_that_size(liar, pushed, refused, pack):
    liar.content[blob_of(liar, pushed)] = pack.read_bytes()[::-1]
    refused("sent a blob of digest")


def test_a_blob_without_end(liar, pushed, refused, pack):
    liar.answer("GET", blob_of(liar, pushed), lambda said: said.stream(b"x" * 65536, 1 << 20))
    refused(f"sends more of the blob .* than {pack.stat().st_size} bytes")


def test_a_blob_that_comes_by_drops(liar, pushed, refused, monkeypatch):
    """One byte after the other, each before the connection would be given up."""
    clock = itertools.count()
    monkeypatch.setattr(registry.time, "monotonic", lambda: 50.0 * next(clock))
    liar.answer("GET", blob_of(liar, pushed), lambda said: said.stream(b"x", 5000))
    refused("sends too slowly")


def continues(said):
    """As a server that asks for more, again and again."""
    with contextlib.suppress(OSError):
        while True:
            said.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            time.sleep(0.01)


def drips(said):
    """A header that comes by drops."""
    with contextlib.suppress(OSError):
        said.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
        while True:
            said.wfile.write(b"x")
            time.sleep(0.1)


@pytest.mark.parametrize("how", [continues, drips])
def test_an_answer_whose_headers_have_no_end(liar, pushed, refused, monkeypatch, how):
    monkeypatch.setattr(registry, "_TIMES", (1.0, 1.0))
    monkeypatch.setattr(registry, "_PATIENCE", 1.0)
    liar.answer("GET", blob_of(liar, pushed), how)
    refused("sends too slowly")


def test_a_blob_is_given_the_time_that_its_bytes_have_earned(liar, pushed, pack, refused, monkeypatch):
    """Not the time that the size stated for it would: a size costs a server nothing."""
    monkeypatch.setattr(registry, "_PATIENCE", 1.0)
    monkeypatch.setattr(registry, "_SLOWEST", 100)
    monkeypatch.setattr(registry, "_WAITS", ())
    content = pack.read_bytes()
    assert len(content) > 2000

    def drip(said):
        said.cut(b"", len(content))
        with contextlib.suppress(OSError):
            for byte in content[:100]:
                said.wfile.write(bytes([byte]))
                time.sleep(0.1)

    liar.answer("GET", blob_of(liar, pushed), drip)
    refused("sends too slowly")


KILLED = """
import sys
from safecache.upkeep import oci, registry
what = registry.parse(sys.argv[1])
with oci.fetched(what, registry.Registry(what.host, what.name, plain=True), sys.argv[2], 1 << 30):
    pass
"""


def aged(path):
    os.utime(path, (0, 0), follow_symlinks=False)


def test_what_a_killed_download_has_left_is_removed_by_the_next(liar, pushed, pack, tmp_path):
    target, content = tmp_path / "target", pack.read_bytes()
    target.mkdir()
    hanging = threading.Event()

    def hang(said):
        said.say(200, content[:-1], Content_Length=str(len(content)))
        said.wfile.flush()
        hanging.wait(60)

    def next_one():
        with oci.fetched(*at(liar), str(target), MOST) as found:
            assert Path(found.path).read_bytes() == content

    others = [target / name for name in (".0123456789abcde.tmp", ".1.2.tmp", "kept.tmp", ".fedcba9876543210.tmp")]
    for path in others[:-1]:
        path.write_bytes(b"not ours")
    others[-1].symlink_to(pack)
    liar.answer("GET", blob_of(liar, pushed), hang)
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-c", KILLED, f"oci://{liar.host}/team/model:v1", str(target)]
    with subprocess.Popen(command, env=environment) as process:
        while not (left := [path for path in target.iterdir() if path not in others and path.stat().st_size]):
            time.sleep(0.05)
        liar.lies.clear()
        for path in [*left, *others]:
            aged(path)
        next_one()
        assert left[0].exists(), "its process lives, however long it takes"
        process.kill()
        process.wait()
    hanging.set()
    aged(left[0])
    next_one()
    assert sorted(target.iterdir()) == sorted(others) and pack.read_bytes() == content


def test_a_blob_that_is_missing(liar, pushed, refused):
    del liar.content[blob_of(liar, pushed)]
    refused(r"refuses the blob .* \(HTTP 404 NAME_UNKNOWN\)")


def test_a_blob_that_is_compressed_on_the_way_is_not_inflated(liar, pushed, refused, pack):
    packed = gzip.compress(bytes(1 << 30), 1)
    liar.answer("GET", blob_of(liar, pushed), lambda said: said.say(200, packed, Content_Encoding="gzip"))
    refused("sends more of the blob|sent a blob of digest")


def ranged(said, content, status=206):
    begin = int(said.headers["Range"].removeprefix("bytes=").rstrip("-")) if "Range" in said.headers else 0
    return begin, content[begin:]


def test_a_blob_that_breaks_off_is_taken_up_where_it_did(liar, pushed, fetch, pack):
    content, begun = pack.read_bytes(), []

    def answer(said):
        begin, rest = ranged(said, content)
        begun.append(begin)
        if len(begun) < 4:
            said.cut(
                rest[:700_000],
                len(rest),
                206 if begin else 200,
                Content_Range=f"bytes {begin}-{len(content) - 1}/{len(content)}" if begin else "",
            )
        else:
            said.say(206, rest, Content_Range=f"bytes {begin}-{len(content) - 1}/{len(content)}")

    liar.answer("GET", blob_of(liar, pushed), answer)
    assert fetch() == content
    assert begun == sorted(set(begun)) and len(begun) == 4


def test_one_that_knows_of_no_ranges_sends_it_from_the_start(liar, pushed, fetch, pack):
    content, times = pack.read_bytes(), []

    def answer(said):
        times.append(1)
        said.cut(content[:2_500_000], len(content)) if len(times) == 1 else said.say(200, content)

    liar.answer("GET", blob_of(liar, pushed), answer)
    assert fetch() == content


def test_a_blob_that_goes_on_as_another_one(liar, pushed, refused, pack):
    content, times = pack.read_bytes(), []

    def answer(said):
        times.append(1)
        begin, rest = ranged(said, content)
        if len(times) == 1:
            said.cut(content[:1000], len(content))
        else:
            said.say(206, bytes(len(rest)), Content_Range=f"bytes {begin}-{len(content) - 1}/{len(content)}")

    liar.answer("GET", blob_of(liar, pushed), answer)
    refused("sent a blob of digest")


def test_one_that_always_breaks_off_is_given_up(liar, pushed, refused, pack):
    liar.answer("GET", blob_of(liar, pushed), lambda said: said.cut(b"", pack.stat().st_size))
    refused("broke off|ended the blob")
    assert len(liar.asked) == 1 + len(registry._WAITS) + 1


def test_a_fault_that_passes_is_tried_again(liar, fetch, pack):
    times = []

    def answer(said):
        times.append(1)
        said.say(503) if len(times) < 3 else said.server.liar.honest(said)

    liar.answer("GET", "/manifests/v1", answer)
    assert fetch() == pack.read_bytes()


# Passwords and tokens.


def basic(said):
    """Serve whoever has the password."""
    if said.headers.get("Authorization") == _BASIC:
        said.server.liar.honest(said)
    else:
        said.say(401, WWW_Authenticate='Basic realm="here"')


def bearer(realm):
    """Serve whoever has a token of this place for what is done."""

    def answer(said):
        scope = "pull" if said.command in ("GET", "HEAD") else "push,pull"
        if said.headers.get("Authorization") == f"Bearer {scope}":
            said.server.liar.honest(said)
        else:
            said.say(401, WWW_Authenticate=f'Bearer realm="{realm}",service="s",scope="repository:team/model:{scope}"')

    return answer


def give_token(said):
    said.say(200, json.dumps({"token": said.path.rpartition("%3A")[2].replace("%2C", ",")}).encode())


def test_a_password_goes_with_what_is_asked_and_not_with_a_redirect(liar, second, pushed, fetch, logins, pack):
    logins(liar.host)
    digest = blob_of(liar, pushed)
    second.content[digest] = pack.read_bytes()
    liar.answer("GET", digest, lambda said: said.say(307, Location=f"{second.url}/store/{digest}?signature=abc"))
    liar.answer("GET", "", basic)
    assert fetch() == pack.read_bytes()
    assert liar.authorizations() == [_BASIC, _BASIC]
    assert second.asked and second.authorizations() == []


def test_what_netrc_has_for_a_place_is_not_sent_there(liar, second, pushed, fetch, tmp_path, monkeypatch):
    (tmp_path / "netrc").write_text(f"machine 127.0.0.1 login {USER} password {PASSWORD}\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    fetch()
    assert liar.authorizations() == []


def test_a_redirect_out_of_tls_is_not_followed(liar, second, pushed, refused, certificate):
    liar.with_tls(*certificate)
    liar.answer("GET", blob_of(liar, pushed), lambda said: said.say(302, Location=f"{second.url}/somewhere"))
    refused("directs to another place without TLS", plain=False, authorities=certificate[0])
    assert second.asked == []


@pytest.mark.parametrize(
    "place",
    [
        "file:///etc/passwd",
        "ftp://127.0.0.1/",
        "http://",
        "http://a:b@SECOND/",
        "//",
        "http://[",
        "https://[::1",
        "http://a:b:c/",
    ],
)
def test_a_redirect_to_what_is_no_place(liar, second, pushed, refused, place):
    liar.answer("GET", blob_of(liar, pushed), lambda said: said.say(302, Location=place.replace("SECOND", second.host)))
    refused("directs to|redirects without end|cannot be reached")
    assert second.asked == []


def test_redirects_without_end(liar, refused):
    liar.answer("GET", "", lambda said: said.say(302, Location=said.path))
    refused("redirects without end")
    assert len(liar.asked) == 5


def test_an_upload_elsewhere_is_sent_without_the_password(liar, second, logins, pack):
    logins(liar.host)
    liar.answer(
        "POST",
        "",
        lambda said: (
            said.say(202, Location=f"{second.url}/upload/1?state=x") if "Authorization" in said.headers else basic(said)
        ),
    )
    liar.answer("HEAD", "", basic)
    liar.answer("PUT", "", basic)
    to, there = at(liar)
    oci.push(to, str(pack), {}, there)
    assert [method for method, _, _ in second.asked] == ["PUT", "PUT"]
    assert second.authorizations() == []


def test_an_answer_to_an_upload_that_is_a_redirect(liar, second, pack):
    liar.answer("PUT", "", lambda said: said.say(307, Location=f"{second.url}/upload"))
    to, there = at(liar)
    with pytest.raises(RegistryError, match="HTTP 307"):
        oci.push(to, str(pack), {}, there)
    assert second.asked == []


def test_a_manifest_that_was_stored_as_another(liar, pack):
    liar.answer("PUT", "/manifests/v1", lambda said: said.say(201, Docker_Content_Digest="sha256:" + "0" * 64))
    to, there = at(liar)
    with pytest.raises(RegistryError, match="as another one than was sent"):
        oci.push(to, str(pack), {}, there)


def test_tokens_are_fetched_for_what_is_done(liar, second, logins, pack, tmp_path):
    logins(liar.host)
    second.answer("GET", "/token", give_token)
    for method in ("GET", "HEAD", "POST", "PUT"):
        liar.answer(method, "", bearer(f"{second.url}/token"))
    to, there = at(liar)
    oci.push(to, str(pack), {}, there)
    with oci.fetched(to, there, str(tmp_path), MOST) as found:
        assert Path(found.path).read_bytes() == pack.read_bytes()
    assert set(second.authorizations()) == {_BASIC}
    assert _BASIC not in liar.authorizations()


def test_without_a_login_a_token_is_asked_for_too(liar, second, pushed, fetch, pack):
    second.answer("GET", "/token", give_token)
    liar.answer("GET", "", bearer(f"{second.url}/token"))
    assert fetch() == pack.read_bytes()
    assert second.authorizations() == []


def test_a_place_of_tokens_without_tls_gets_no_password(liar, second, pushed, refused, certificate, logins):
    logins(liar.host)
    liar.with_tls(*certificate)
    liar.answer("GET", "", bearer(f"{second.url}/token"))
    refused("without TLS for a token", plain=False, authorities=certificate[0])
    assert second.asked == []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b'{"token": 5}',
        b'{"token": ""}',
        b'{"token": "a\\r\\nX-Evil: b"}',
        b'{"token": "\xc3\xa4"}',
        b"[" * 60_000,
    ],
)
def test_a_token_that_is_none(liar, second, pushed, refused, content):
    second.answer("GET", "/token", lambda said: said.say(200, content))
    liar.answer("GET", "", bearer(f"{second.url}/token"))
    refused("sent no token")


@pytest.mark.parametrize("realm", ["", "/token", "https://[", "file:///etc/passwd", "ftp://127.0.0.1/"])
def test_a_place_of_tokens_that_is_none(liar, pushed, refused, realm):
    liar.answer("GET", "", bearer(realm))
    refused("directs to")


def test_a_token_without_end(liar, second, pushed, refused):
    second.answer("GET", "/token", lambda said: said.stream(b" " * 65536, 1 << 20))
    liar.answer("GET", "", bearer(f"{second.url}/token"))
    refused("a token is larger than")


def test_a_password_that_is_not_taken_is_sent_once(liar, pushed, refused, logins):
    logins(liar.host)
    liar.answer("GET", "", lambda said: said.say(401, WWW_Authenticate='Basic realm="here"'))
    refused(f"docker login {liar.host}")
    assert liar.authorizations() == [_BASIC]


@pytest.fixture
def elsewhere(monkeypatch):
    """This machine is another one."""
    monkeypatch.setattr(registry, "_is_this_machine", lambda name: False)


@pytest.mark.parametrize("asks", [basic, bearer("http://127.0.0.1:1/token"), bearer("https://127.0.0.1:1/token")])
def test_a_login_is_not_sent_to_another_machine_without_tls(liar, pushed, refused, logins, elsewhere, asks):
    logins(liar.host)
    liar.answer("GET", "", asks)
    refused(f"the login for {liar.host} is not sent to {liar.host} without TLS")
    assert liar.authorizations() == []


@pytest.mark.parametrize("token", [False, True])
def test_a_login_is_not_sent_to_a_place_of_tokens_elsewhere_without_tls(
    liar, second, pushed, refused, tmp_path, monkeypatch, token
):
    """Neither a password nor a token of identity, which is as good as one."""
    entry = {"identitytoken": PASSWORD} if token else {"username": USER, "password": PASSWORD}
    monkeypatch.setattr(Registry, "_credentials", lambda self: entry)
    monkeypatch.setattr(registry, "_is_this_machine", lambda name: name == "127.0.0.1")
    port = second.host.rpartition(":")[2]
    liar.answer("GET", "", bearer(f"http://localhost:{port}/token"))
    refused(f"is not sent to localhost:{port} without TLS")
    assert second.asked == []


def test_a_token_of_identity_is_sent_as_docker_does(liar, second, pushed, fetch, pack, monkeypatch):
    monkeypatch.setattr(Registry, "_credentials", lambda self: {"IdentityToken": PASSWORD})
    sent = []
    second.answer("POST", "/token", lambda said: (sent.append(said.sent), said.say(200, b'{"access_token": "pull"}')))
    liar.answer("GET", "", bearer(f"{second.url}/token"))
    assert fetch() == pack.read_bytes()
    assert f"refresh_token={PASSWORD}".encode() in sent[0] and b"grant_type=refresh_token" in sent[0]
    assert liar.authorizations() == ["Bearer pull", "Bearer pull"]


def test_logins_that_cannot_be_read(liar, pushed, refused, tmp_path):
    (tmp_path / "docker" / "config.json").write_text(json.dumps({"auths": {}, "credsStore": "none-such"}))
    liar.answer("GET", "", basic)
    refused("docker's logins cannot be read")


def test_what_an_error_says_is_not_shown(liar, refused):
    said = b'{"errors": [{"code": "DENIED"}, {"code": "\\u001b[31m"}, {"code": "x y"}, {"code": 5}]}'
    liar.answer("GET", "", lambda answer: answer.say(403, said))
    refused(r"refuses the manifest v1 \(HTTP 403\)$|\(HTTP 403 DENIED\)$")


# Images: a layer of tar and gzip with the pack as its first file.


# Without the time, which is in the tests' names.
packed = partial(gzip.compress, mtime=0)


def sized(value):
    """The name of a parameter."""
    return value if isinstance(value, str) else f"{len(value)} bytes"


def layer_of(name=oci._IN_IMAGE, content=b"a pack", **fields):
    member = tarfile.TarInfo(name)
    member.size = len(content)
    for field, value in fields.items():
        setattr(member, field, value)
    return member.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % 512 + 1024)


def serve_layer(liar, pushed, content):
    digest = registry.digest_of(content)
    liar.content[digest] = content
    change(liar, pushed, kind=oci._IMAGE_LAYER, digest=digest, size=len(content))


def test_the_pack_in_an_image(liar, pushed, fetch):
    serve_layer(liar, pushed, packed(layer_of()))
    assert fetch() == b"a pack"


@pytest.mark.parametrize(
    ("layer", "match"),
    [
        (b"no gzip at all", "no gzip"),
        (packed(b"a" * 2000), "no tar"),
        (packed(bytes(2000)), "no tar"),
        (packed(b"a" * 100), "ends too early"),
        (packed(b""), "ends too early"),
        (packed(layer_of())[:60], "ends too early"),
        (packed(layer_of(content=b"x" * 5000)[:3000]), "ends too early"),
        (packed(layer_of("../../evil")), "does not begin with io.triton.cache/model.safecache"),
        (packed(layer_of("/etc/evil")), "does not begin with"),
        (packed(layer_of(type=tarfile.SYMTYPE, linkname="/etc/passwd")), "does not begin with"),
        (packed(layer_of(type=tarfile.XHDTYPE)), "does not begin with"),
        (packed(layer_of(size=1 << 40)), "of at most"),
        (packed(layer_of(size=-5)), "of at most|no tar"),
    ],
    ids=sized,
)
def test_a_layer_of_something_else(liar, pushed, refused, layer, match):
    serve_layer(liar, pushed, layer)
    refused(match)


def test_what_follows_the_pack_in_a_layer_is_not_inflated(liar, pushed, fetch, monkeypatch):
    serve_layer(liar, pushed, packed(layer_of() + bytes(1 << 28), 1))
    inflated = []
    stock = oci._inflated

    def counting(*arguments):
        for piece in stock(*arguments):
            inflated.append(len(piece))
            yield piece

    monkeypatch.setattr(oci, "_inflated", counting)
    assert fetch() == b"a pack"
    assert sum(inflated) <= 2 << 20


# References.


@pytest.mark.parametrize(
    ("text", "host", "name", "tag"),
    [
        ("oci://ghcr.io/team/model:v1", "ghcr.io", "team/model", "v1"),
        ("oci://localhost:5000/model", "localhost:5000", "model", "latest"),
        ("oci://[::1]:5000/a/b/c:X_1.2-3", "[::1]:5000", "a/b/c", "X_1.2-3"),
        ("oci://docker.io/model:v1", "docker.io", "library/model", "v1"),
        ("oci://r.example/a__b/c-d.e", "r.example", "a__b/c-d.e", "latest"),
        ("oci://r.example/a@sha256:" + "1" * 64, "r.example", "a", ""),
        ("oci://r.example/a:v1@sha256:" + "1" * 64, "r.example", "a", "v1"),
    ],
)
def test_references(text, host, name, tag):
    assert registry.parse(text)[:3] == (host, name, tag)


@pytest.mark.parametrize(
    "text",
    [
        "oci://",
        "oci://r.example",
        "oci://r.example/",
        "oci://r.example/../admin:v1",
        "oci://r.example/a/../b:v1",
        "oci://r.example/a//b:v1",
        "oci://r.example/A:v1",
        "oci://r.example/a:",
        "oci://r.example/a:v1?x=y",
        "oci://r.example/a:v1#x",
        "oci://r.example/a:v1\n",
        "oci://r.example/a:.v1",
        "oci://r.example/a@sha256:12",
        "oci://r.example/a@sha512:" + "1" * 128,
        "oci://r.example:99999999/a",
        "oci://-r.example/a",
        f"oci://{USER}:{PASSWORD}@r.example/a:v1",
        "https://r.example/a:v1",
    ],
)
def test_what_is_no_reference(text):
    with pytest.raises(RegistryError) as refusal:
        registry.parse(text)
    assert PASSWORD not in str(refusal.value)


def test_a_digest_is_none_to_push_to(pack, liar):
    to, there = at(liar)
    with pytest.raises(RegistryError, match="gets a tag"):
        oci.push(to._replace(digest="sha256:" + "1" * 64), str(pack), {}, there)
    assert liar.asked == []
