"""Key files say what they are, in full and nothing else; what is public never becomes a secret."""

from __future__ import annotations

import base64
import json
import subprocess

import pytest
from helpers import key_cases
from helpers.key_cases import MAC, PRIVATE, PUBLIC

from safecache.errors import KeyringError
from safecache.signing import key_files, keys
from safecache.signing.keys import Key

KEYS = pytest.mark.parametrize("key", [MAC, PRIVATE, PUBLIC], ids=["mac", "private", "public"])


def fields_of(key, **changes):
    return json.loads(key_files.encode(key)) | changes


def decode(**fields):
    return key_files.decode(json.dumps(fields).encode())


@KEYS
def test_key_survives_its_file(key):
    full = key._replace(
        name="grün", created=1.0, expires=4e9, revoked=2.0, why_revoked="lost", namespaces=("prod/*", "test")
    )
    for each in (key, full):
        assert key_files.decode(key_files.encode(each)) == each
        assert key_files.recognise(key_files.encode(each), any_secret=True) == each


@KEYS
def test_file_holds_one_part_and_no_other(key):
    held = {"secret", "private", "public"} & fields_of(key).keys()
    assert held == {{MAC: "secret", PRIVATE: "private", PUBLIC: "public"}[key]}


def test_file_of_the_public_part_does_not_hold_the_private_one():
    content = key_files.encode(PUBLIC)
    assert base64.b64encode(PRIVATE.secret) not in content and PRIVATE.secret.hex().encode() not in content


@KEYS
@pytest.mark.parametrize("field", ["id", "revoked", "namespaces"])
def test_field_that_is_stated_twice_is_refused(key, field):
    """Whoever reads the first of them reads another restriction than we do."""
    content = key_files.encode(key_cases.revoked(key)).rstrip().removesuffix(b"}") + b',"%s": null}' % field.encode()
    assert json.loads(content)[field] is None
    with pytest.raises(KeyringError, match=f"has fields that it states more than once: '{field}'"):
        key_files.decode(content)


def test_id_is_that_of_the_content():
    """Pinned: an id that changed would orphan every entry."""
    assert (MAC.id.hex(), PUBLIC.id.hex()) == ("0f5e8a92195529fc", "d53816ad516fef2a")


@KEYS
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"id": "0123456789abcdef"}, "says that it is key 0123456789abcdef, and its content is that of key"),
        ({"id": "0123"}, "id that is not 16 hex digits"),
        ({"id": None}, "id that is not 16 hex digits"),
        ({"format": 2}, "no key file of format 1"),
        ({"format": "1"}, "no key file of format 1"),
        ({"algorithm": "none"}, "algorithm that is none of hmac-sha256, ed25519"),
        ({"algorithm": None}, "algorithm that is none of"),
        ({"expire": "2020-01-01"}, "fields that are not known: 'expire'$"),
        ({"\x1b[2J": 1}, r"not known: '\\x1b\[2J'$"),
        ({"expires": "9999-12-31T23:59:59-12:00"}, "time expires that is not one of RFC 3339"),
        ({"expires": "soon"}, "time expires that is not one of RFC 3339"),
        ({"expires": "2030-01-01T00:00:00"}, "time expires that is not one of RFC 3339"),
        ({"expires": 1893456000}, "time expires that is not one of RFC 3339"),
        ({"revoked": True}, "time revoked that is not one of RFC 3339"),
        ({"created": ""}, "time created that is not one of RFC 3339"),
        ({"namespaces": "prod"}, "namespaces that are not a list of patterns"),
        ({"namespaces": [""]}, "namespaces that are not a list of patterns"),
        ({"namespaces": [1]}, "namespaces that are not a list of patterns"),
        ({"name": 7}, "name that is not a text"),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
def test_file_that_is_not_what_it_should_be_is_refused(key, changes, message):
    with pytest.raises(KeyringError, match=message):
        decode(**fields_of(key, **changes))


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        pytest.param(PUBLIC, {"algorithm": "hmac-sha256"}, id="public-key-as-mac"),
        pytest.param(MAC, {"algorithm": "ed25519"}, id="mac-as-signature-key"),
        pytest.param(PUBLIC, {"private": "AA=="}, id="two-parts"),
        pytest.param(MAC, {"public": "AA=="}, id="mac-with-public"),
    ],
)
def test_part_of_the_other_algorithm_is_refused(key, changes):
    with pytest.raises(KeyringError, match="does not hold one of what"):
        decode(**fields_of(key, **changes))


def test_public_key_that_calls_itself_a_secret_is_refused_by_its_id():
    fields = fields_of(PUBLIC, algorithm="hmac-sha256")
    fields["secret"] = fields.pop("public")
    with pytest.raises(KeyringError, match=f"says that it is key {PUBLIC.id.hex()}"):
        decode(**fields)


@pytest.mark.parametrize("key", [MAC, PRIVATE, PUBLIC], ids=["secret", "private", "public"])
@pytest.mark.parametrize("size", [0, 16, 31, 33, 64])
def test_material_of_another_size_is_refused(key, size):
    (part,) = {"secret", "private", "public"} & fields_of(key).keys()
    with pytest.raises(KeyringError, match=f"{part} part that is not the base64 of 32 bytes"):
        decode(**fields_of(key, **{part: base64.b64encode(b"m" * size).decode()}))


@pytest.mark.parametrize("text", ["!", 7, None, ["AA=="]], ids=repr)
def test_material_that_is_no_base64_is_refused(text):
    with pytest.raises(KeyringError, match="secret part that is not the base64"):
        decode(**fields_of(MAC, secret=text))


def test_revoked_key_needs_no_material_and_another_does():
    fields = fields_of(MAC)
    del fields["secret"]
    with pytest.raises(KeyringError, match="does not hold one of what hmac-sha256 needs"):
        decode(**fields)
    key = decode(**fields | {"revoked": "2026-01-01T00:00:00Z"})
    assert key.id == MAC.id and key.revoked and not key.can_seal


@pytest.mark.parametrize("content", [b"{", b"{}", b"[]", b"{" * 100_000, b'{"format": 1}', b'"x"'], ids=lambda c: c[:9])
def test_what_is_no_key_file_is_refused(content):
    with pytest.raises(KeyringError):
        key_files.decode(content)


def test_no_error_shows_a_secret():
    for changes in ({"id": "0" * 16}, {"algorithm": "ed25519"}, {"name": 7}):
        with pytest.raises(KeyringError) as caught:
            decode(**fields_of(MAC, **changes))
        assert fields_of(MAC)["secret"] not in str(caught.value) and MAC.secret.hex() not in str(caught.value)


# --- raw secrets


@pytest.mark.parametrize(
    "content", [b"m" * 32, b"{" + bytes(range(128, 159)), b"\xff" * 40], ids=["text", "brace", "raw"]
)
def test_raw_secret_is_a_mac_key(content):
    assert key_files.recognise(content, any_secret=True) == Key.derive(content)


@pytest.mark.parametrize("any_secret", [True, False])
@pytest.mark.parametrize(
    "content",
    [
        b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ/8mRbNDxoU farm@host\n",
        bytes.fromhex("302a300506032b6570032100") + PUBLIC.public,
        b'{"some": "other JSON file of more than 32 bytes"}',
        b"-----BEGIN CERTIFICATE-----\nAAAAAAAAAAAAAAAAAAAAAAAAAAAA\n-----END CERTIFICATE-----\n",
        b"-----BEGIN PUBLIC KEY-----\nAAAAAAAAAAAAAAAAAAAAAAAAAAA\n-----END PUBLIC KEY-----\n",
        key_files.encode(PUBLIC)[:-10],
        b"\xef\xbb\xbfssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ/8mRbNDxoU farm@host\n",
        b"\x1e-----BEGIN PUBLIC KEY-----\nAAAAAAAAAAAAAAAAAAAAAAAAAAA\n-----END PUBLIC KEY-----\n",
        b"\xff-----BEGIN PUBLIC KEY-----\nAAAAAAAAAAAAAAAAAAAAAAAAAAA\n-----END PUBLIC KEY-----\n",
        "-----BEGIN PUBLIC KEY-----\nAAAAAAAAAAAAAAAA\n-----END PUBLIC KEY-----\n".encode("utf-16"),
    ],
    ids=[
        "openssh",
        "der",
        "json",
        "certificate",
        "damaged-pem",
        "truncated-key-file",
        "openssh-after-a-mark",
        "pem-after-a-separator",
        "pem-after-a-byte",
        "pem-of-wide-characters",
    ],
)
def test_what_is_public_or_of_another_kind_is_never_taken_for_a_raw_secret(content, any_secret):
    with pytest.raises(KeyringError):
        key_files.recognise(content, any_secret=any_secret)


@pytest.mark.parametrize("coding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-32"])
def test_key_file_that_an_editor_saved_in_another_encoding_never_becomes_a_raw_secret(coding):
    """A raw secret made of a public part would be one that everybody has."""
    content = key_files.encode(PUBLIC).decode().encode(coding)
    assert key_files.recognise(content, any_secret=True) == PUBLIC


@pytest.mark.parametrize(
    "content",
    [b"<html>404 Not Found, in more than 32 bytes</html>", b"0" * 63, b"0" * 65, b"m" * 32, b"g" * 64],
    ids=["page", "63-digits", "65-digits", "text", "no-digits"],
)
def test_only_64_hex_digits_are_trusted_as_a_raw_secret(content):
    with pytest.raises(KeyringError, match="no secret of 64 hex digits"):
        key_files.recognise(content, any_secret=False)
    assert key_files.recognise(b"0a" * 32 + b"\n", any_secret=False) == Key.derive(b"0a" * 32)


# --- PEM, as OpenSSL writes it


def openssl(*arguments, given=b""):
    return subprocess.run(["openssl", *arguments], input=given, capture_output=True, check=True).stdout


@pytest.fixture(scope="module")
def pem():
    return openssl("genpkey", "-algorithm", "ed25519")


def test_pem_of_openssl_is_read_and_its_parts_belong_together(pem):
    private = key_files.recognise(pem, any_secret=True)
    public = key_files.recognise(openssl("pkey", "-pubout", given=pem), any_secret=False)
    assert private.can_seal and not public.can_seal and private.extract_public() == public
    assert keys.verify(public.public, private.make_tag(b"message"), b"message")


@pytest.mark.parametrize("before", [b"\xef\xbb\xbf", b"Ours, of 2026:\n", b"\n\n"], ids=["mark", "text", "lines"])
def test_pem_with_something_in_front_of_it_is_read(pem, before):
    public = openssl("pkey", "-pubout", given=pem)
    for content in (pem, public):
        assert key_files.recognise(before + content, any_secret=True) == key_files.recognise(content, any_secret=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("genpkey", "-algorithm", "ed448"), "another kind of key"),
        (("genpkey", "-algorithm", "x25519"), "another kind of key"),
        (("genpkey", "-algorithm", "ed25519", "-aes256", "-pass", "pass:secret"), "without a password"),
    ],
    ids=["ed448", "x25519", "encrypted"],
)
def test_other_pem_is_refused_by_what_it_is(arguments, message):
    with pytest.raises(KeyringError, match=message):
        key_files.recognise(openssl(*arguments), any_secret=True)


# --- where the library is missing


@pytest.mark.parametrize("key", [PRIVATE, PUBLIC], ids=["private", "public"])
def test_signature_key_is_refused_with_the_command_that_installs_the_library(key, monkeypatch):
    content = key_files.encode(key)
    key_cases.forget_cryptography(monkeypatch)
    with pytest.raises(KeyringError, match=r"pip install 'safecache\[sign\]'"):
        key_files.decode(content)


def test_pem_is_refused_with_the_command_that_installs_the_library(pem, monkeypatch):
    key_cases.forget_cryptography(monkeypatch)
    with pytest.raises(KeyringError, match=r"pip install 'safecache\[sign\]'"):
        key_files.recognise(pem, any_secret=True)


def test_mac_key_needs_no_library(monkeypatch):
    key_cases.forget_cryptography(monkeypatch)
    assert key_files.decode(key_files.encode(MAC)) == MAC
