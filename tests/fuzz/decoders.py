"""Everything of safecache that decodes bytes which nobody has attested yet, and what must hold of it for any bytes.

``check`` raises AssertionError where something does not hold, and whatever else a decoder raises that it should not.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import NamedTuple
from unittest import mock

from helpers.key_cases import MAC
from packs import forged

from fuzz import mutators, reference, world
from safecache.entries import artifacts, loading, mega_caches
from safecache.errors import KeyringError, PackRefusedError, RegistryError
from safecache.packs import archive
from safecache.places.layout import CodeFile
from safecache.places.refs import Ref
from safecache.reporting import report
from safecache.reporting.kinds import Kind, Reason
from safecache.settings import units
from safecache.signing import key_files, keyring, keys, provenance, seal, trust
from safecache.signing.keys import Algorithm, Key
from safecache.store import attestations, gate
from safecache.upkeep import oci

CORPUS = Path(__file__).parent / "corpus"


class Decoder(NamedTuple):
    """``change`` makes another input of one; ``check`` tries it. ``changes``: how many a run of the tests tries."""

    name: str
    change: Callable[[bytes, Random], bytes]
    check: Callable[[bytes], None]
    changes: int = 5_000

    @property
    def corpus(self) -> Path:
        """The directory of the inputs that are kept."""
        return CORPUS / self.name

    def kept(self) -> list[bytes]:
        """Those inputs, in the order of their names."""
        return [path.read_bytes() for path in sorted(self.corpus.iterdir())]


def check_seal(content: bytes) -> None:
    """Nothing is taken but what a key whose word counts has sealed for just this question; and all of that is."""
    verdict = _verify(content, world.ASKED)
    taken = [verdict.reason is None]
    genuine = [reference.payload_if_genuine(content, world.ASKED)]
    if verdict.provenance is not None:
        # Its tag is good, so only the question stands between it and being used.
        taken += [_verify(content, question).reason is None for question in world.OTHERS]
        genuine += [reference.payload_if_genuine(content, question) for question in world.OTHERS]
        assert sum(taken) <= 1, "one seal for two questions"
        assert all(isinstance(said, str) for said in verdict.provenance.values()), verdict
    assert taken == [payload is not None for payload in genuine], (verdict, genuine)
    payload = seal.strip_unverified(content)
    assert content.startswith(payload)
    assert all(payload == each for each in genuine if each is not None)
    if verdict.reason not in (None, *trust.UNATTESTED):
        assert trust.explain_verdict(verdict)


def _verify(content: bytes, question: world.Question) -> seal.Verdict:
    kind, cache_key, namespace = question
    verdict = seal.verify(content, kind, cache_key, world.TRUSTED.get, namespace)
    assert verdict == seal.verify(content, kind, cache_key, world.TRUSTED.get, namespace), "two verdicts"
    assert (verdict.reason is Reason.UNSEALED) == (verdict.key_id is None and seal.split_unverified(content) is None)
    return verdict


# --- records

LIBRARY = b"\x7fELF code"
_STAMP = [1, 2, len(LIBRARY), 3]
_STATUS = os.stat_result((0o100644, 2, 1, 1, os.geteuid(), 0, len(LIBRARY), 0, 0, 0))
_RING = keyring.Keyring(MAC, trusted=world.TRUSTED)
_RECORD: world.Question = (Kind.NATIVE_CODE, "ab/abc.so", "default")


def record(**statement: object) -> bytes:
    """The record of LIBRARY, or one that states something else."""
    import hashlib

    stated = {"sha256": hashlib.sha256(LIBRARY).hexdigest(), "stamp": None} | statement
    return world.sealed(question=_RECORD, payload=json.dumps(stated).encode())


def check_record(content: bytes) -> None:
    """A file is taken if a genuine record states its digest, whatever else it states."""
    payload = reference.payload_if_genuine(content, _RECORD)
    try:
        stated = {} if payload is None else json.loads(payload)
    except (ValueError, RecursionError):
        stated = {}
    stated = stated if isinstance(stated, dict) else {}
    footer = seal.split_unverified(content)
    said = (
        reference.statement(content[footer.payload_size :][: footer.body_size])
        if footer and payload is not None
        else {}
    )
    runs_here = reference.runs_here(Kind.NATIVE_CODE, said["provenance"]) if said else False
    digest = gate.hashlib.sha256(LIBRARY).hexdigest()
    assert (_judge(content) is None) == (stated.get("sha256") == digest and runs_here), (stated, said)


def _judge(content: bytes) -> report.Refusal | None:
    """As a process that has seen nothing before, and finds LIBRARY with ``content`` as its record."""
    with (
        mock.patch.object(attestations._state, "now", attestations._State()),
        mock.patch.object(gate.filesystem, "get_identity", lambda _: list(_STAMP)),
        mock.patch.object(gate.entry_files, "read_unverified_entry", lambda *_: content),
        mock.patch.object(gate.filesystem, "lstat", lambda _: _STATUS),
        mock.patch.object(gate.opening, "digest_regular", lambda *_, **__: gate.hashlib.sha256(LIBRARY).digest()),
        mock.patch.object(gate.ownership, "find_exposure", lambda _: None),
        mock.patch.object(keyring, "current", lambda: _RING),
        _here(),
    ):
        found = gate.judge_file(CodeFile("/cache/ab/abc.so", "/cache"))
        again = gate.judge_file(CodeFile("/cache/ab/abc.so", "/cache"))
    assert found == again, "two verdicts"
    return found


def _here() -> contextlib.AbstractContextManager:
    """Where everything that is loaded runs."""
    here = contextlib.ExitStack()
    here.enter_context(mock.patch.object(provenance, "describe", lambda: dict(reference.HERE)))
    here.enter_context(mock.patch.object(provenance, "list_instructions", lambda: reference.CPU))
    return here


# --- keys and times


def check_key_file(content: bytes) -> None:
    """A key has the id of its material, what is public is no secret, and nothing is raised but KeyringError."""
    keys = [_key(content, any_secret) for any_secret in (True, False)]
    assert keys[1] in (None, keys[0]), "what is a key in a directory is the same key in SAFECACHE_KEY_FILE"
    for key in filter(None, keys):
        _check_key(key)
        assert _stated_id(content) in (None, key.id.hex()), "an id that the file does not say"
        if b"-----BEGIN" in content or any(_reads_as(content, coding) for coding in ("utf-8-sig", "utf-16", "utf-32")):
            assert key != Key.derive(content.rstrip(b"\r\n")), "a file that says what it is was taken for a raw secret"


def _stated_id(content: bytes) -> str | None:
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return fields.get("id") if isinstance(fields, dict) else None


def _reads_as(content: bytes, coding: str) -> bool:
    """Whether somebody sees a key file in it who reads it in this encoding, of those that begin with a mark."""
    try:
        text = content.decode(coding).strip()
    except UnicodeDecodeError:
        return False
    marked = coding == "utf-8-sig" or content.startswith((b"\xff\xfe", b"\xfe\xff", b"\0\0\xfe\xff"))
    return marked and (text.startswith("{") or "-----BEGIN" in text)


def _key(content: bytes, any_secret: bool) -> Key | None:
    try:
        key = key_files.recognise(content, any_secret=any_secret)
    except KeyringError as error:
        assert str(error).isprintable(), error
        return None
    assert key == key_files.recognise(content, any_secret=any_secret), "two keys"
    return key


def _check_key(key: Key) -> None:
    if key.secret or key.public:
        made = Key.make_ed25519(key.public) if key.algorithm is Algorithm.ED25519 else Key.make_mac(key.secret)
        assert key.id == made.id, "an id of other material"
    else:
        assert key.revoked is not None, "no material"
    if key.algorithm is Algorithm.ED25519 and key.secret:
        assert keys.derive_public(key.secret) == key.public
    key.can_supply("default")
    key.find_objection(0.0)
    written = key_files.encode(key)
    assert key_files.encode(key_files.decode(written)) == written, "it does not survive its file"


def check_timestamp(content: bytes) -> None:
    """A moment, or ValueError; what is written of it is the same moment, to the second."""
    text = content.decode("utf-8", "surrogateescape")
    try:
        seconds = units.parse_time(text)
        written = units.write_time(seconds)
    except (ValueError, OverflowError):
        return
    assert units.parse_time(written) == int(seconds), written


# --- names


def check_name(content: bytes) -> None:
    """No name that is let pass leaves its directory, or names anything hidden there."""
    name = content.decode("utf-8", "surrogateescape")
    if artifacts.is_plain(name):
        _check_inside(name, 1)
    if artifacts.is_autotuning_name(name):
        assert artifacts.is_plain(name) and name.endswith(".best_config")
    if mega_caches._is_autotuning_key(name):
        _check_inside(name, 2)
        assert name.endswith(".best_config")


def _check_inside(name: str, depth: int) -> None:
    parts = os.path.normpath(os.path.join("/cache", name)).split("/")
    assert parts[:2] == ["", "cache"] and len(parts) == 2 + depth, name
    assert not any(part.startswith(".") for part in parts[2:]) and "\0" not in name, name


# --- what a remote cache answers


def check_remote(content: bytes) -> None:
    """Bytes or nothing; and they are admitted if they are a genuine entry."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return
    kind, cache_key, _ = world.ASKED
    with mock.patch.object(keyring, "current", lambda: _RING), mock.patch.object(loading.events, "report"), _here():
        found = loading.fetch_unverified(kind, cache_key, mock.Mock(get=lambda _: value))
        assert found is None or isinstance(found, bytes)
        if found is not None:
            admitted = loading.accept_or_quarantine(Ref(kind, cache_key), found, origin="the remote cache")
            footer, payload = seal.split_unverified(found), reference.payload_if_genuine(found, world.ASKED)
            said = reference.statement(found[footer.payload_size :][: footer.body_size]) if payload is not None else {}
            assert admitted == bool(said and reference.runs_here(kind, said["provenance"])), said


# --- packs


def check_pack(content: bytes) -> None:
    """Refused, or its manifest is genuine, and so is each file of each group that can be read."""

    file = SimpleNamespace(size=len(content), read=lambda start, most: content[start : start + most])
    with (
        mock.patch.object(keyring, "current", lambda: _RING),
        mock.patch.object(archive.opening, "OpenFile", lambda *_: file),
        _here(),
    ):
        try:
            found = archive.open_pack("a pack")
        except PackRefusedError as error:
            assert error.reason and "a pack" in str(error)
            return
        manifest = forged.members(forged.first_frame(content))
        sealed = manifest["manifest.json"] + manifest["manifest.seal"]
        payload = reference.payload_if_genuine(sealed, (Kind.PACK, "manifest.json", "default"))
        assert payload is not None and json.loads(payload)["predicate"] == found.manifest
        for group in found.groups:
            with contextlib.suppress(PackRefusedError):
                files = {file.name: hashlib.sha256(file.content).hexdigest() for file in found.read(group)}
                assert files == {name: digest for name, (_, digest) in group.files.items()}


# --- what a registry of container images says


def check_registry(content: bytes) -> None:
    """The digest and size of a layer, or RegistryError."""
    with contextlib.suppress(RegistryError):
        digest, size = oci._read_unverified_layer(content, oci.Reference("a.b/c", "v1", ""))
        assert oci._DIGEST.fullmatch(digest) and size >= 0


def check_layer(content: bytes) -> None:
    """A pack of at most the size that is allowed, or RegistryError."""
    file = io.BytesIO()
    with contextlib.suppress(RegistryError):
        oci._unwrap_unverified(io.BytesIO(content), file, 4096, "a pack")
    assert len(file.getvalue()) <= 4096


DECODERS = [
    Decoder("seal", mutators.change_entry, check_seal),
    Decoder("record", mutators.change_record, check_record),
    Decoder("key_file", mutators.change_key_file, check_key_file),
    Decoder("timestamp", mutators.change_text, check_timestamp),
    Decoder("name", mutators.change_text, check_name),
    Decoder("remote", mutators.change_remote, check_remote, changes=3_000),
    Decoder("pack", mutators.change_pack, check_pack, changes=600),
    Decoder("registry", mutators.change_text, check_registry),
    Decoder("layer", mutators.change_bytes, check_layer, changes=1_500),
    # A header that claims 65,000 others takes some milliseconds.
]
