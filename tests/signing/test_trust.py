"""The judgement that stands before every unpickling: what may be used is counted, and what may not is told why."""

from __future__ import annotations

import json
import os
import threading

import pytest

import safecache
from safecache.places import layout
from safecache.reporting import events
from safecache.reporting.kinds import Kind, Reason
from safecache.signing import keyring, keys, seal, trust
from safecache.signing import provenance as of_build
from safecache.signing.keyring import Keyring

KEY = "the key"


def sealed(kind=Kind.FX_ENTRY, **provenance):
    return seal.attach(
        b"payload", kind, KEY, keyring.current().signing, {**of_build.make_statement(kind), **provenance}
    )


def test_sealed_entry_is_taken_and_counted():
    assert trust.judge(sealed(), Kind.FX_ENTRY, KEY, None) is None
    assert events.read_counters() == {"verified": 1}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (lambda: sealed()[1:], Reason.DAMAGED),
        (lambda: sealed(Kind.AOT_ENTRY), Reason.OTHER_KIND),
        (lambda: sealed(machine="vax"), Reason.OTHER_BUILD),
        (lambda: b"payload", Reason.UNSEALED),
    ],
    ids=["damaged", "other-kind", "other-build", "unsealed"],
)
def test_refused_entry_is_not_counted_as_used(content, reason):
    refusal = trust.judge(content(), Kind.FX_ENTRY, KEY, None)
    assert refusal.reason is reason and events.read_counters() == {}


def test_private_trust_takes_nothing_unsealed_that_came_from_no_file(settings):
    settings(SAFECACHE_TRUST="private")
    assert trust.judge(b"payload", Kind.FX_ENTRY, KEY, None).reason is Reason.UNSEALED


@pytest.mark.parametrize("value", [5, None, ["x86_64"], {}])
def test_seal_that_states_its_provenance_in_no_words_is_refused(value):
    """Whoever holds a key can state what he likes; what reads it expects text."""
    key = keys.Key.derive(b"k" * 32)
    content = seal.attach(b"payload", Kind.FX_ENTRY, KEY, key, {"machine": value})
    assert json.dumps(value).encode() in content
    assert seal.verify(content, Kind.FX_ENTRY, KEY, {key.id: key}.get).reason is Reason.UNKNOWN_FORMAT


@pytest.mark.parametrize(("mode", "reason"), [(0o755, None), (0o777, Reason.NOT_PRIVATE)])
def test_private_trust_takes_what_nobody_else_could_have_written(tmp_path, settings, mode, reason):
    settings(SAFECACHE_TRUST="private")
    directory = tmp_path / "cache"
    directory.mkdir()
    directory.chmod(mode)
    path = directory / layout.name_entry(b"payload")
    path.write_bytes(b"payload")
    refusal = trust.judge(b"payload", Kind.FX_ENTRY, KEY, str(path))
    assert (refusal and refusal.reason) == reason
    assert events.read_counters() == ({} if reason else {"accepted as private": 1})


@pytest.mark.parametrize("about_key", [True, False])
def test_key_is_named_where_the_refusal_is_about_it(about_key):
    reason = Reason.REVOKED_KEY if about_key else Reason.DAMAGED
    verdict = seal.Verdict(reason, b"\xab" * 8)
    assert trust.explain_verdict(verdict).endswith(
        "revoked: " + "ab" * 8 if about_key else "does not match the digest in its seal"
    )
    assert not trust.explain_verdict(verdict._replace(key_id=None)).endswith(":")
    assert trust.explain_verdict(verdict._replace(reason=None)) == ""


OURS, THEIRS = keys.Key.derive(b"o" * 32), keys.Key.derive(b"t" * 32)


@pytest.mark.parametrize(
    ("ring", "said"),
    [
        (Keyring(OURS), f"its own key is {OURS.id.hex()}"),
        (Keyring(OURS, fresh=True), f"its own key is {OURS.id.hex()}, generated just now"),
        (Keyring(OURS, trusted={OURS.id: OURS, b"8" * 8: OURS}), ", and it trusts 2 keys in all"),
        (Keyring(None, problem="the disk is full"), "no key is available: the disk is full"),
        (Keyring(OURS, refused={THEIRS.id: "its file has mode 0666"}), "is not used: its file has mode 0666"),
    ],
    ids=["ours", "fresh", "several", "none", "refused"],
)
def test_refusal_of_an_unknown_key_says_which_keys_there_are(monkeypatch, ring, said):
    monkeypatch.setattr(keyring, "current", lambda: ring)
    content = seal.attach(b"payload", Kind.FX_ENTRY, KEY, THEIRS, {})
    refusal = trust.judge(content, Kind.FX_ENTRY, KEY, None)
    assert refusal.reason is Reason.UNKNOWN_KEY and refusal.evidence.endswith(said)


def test_remedy_is_adopting_a_file_a_key_for_what_a_stranger_has_sealed_and_none_for_what_will_be_replaced(tmp_path):
    path = tmp_path / "aotautograd" / "key" / layout.name_entry(b"payload")
    assert f"safecache adopt {tmp_path}" in trust.judge(b"payload", Kind.AOT_ENTRY, KEY, str(path)).remedy
    by_a_stranger = seal.attach(b"payload", Kind.AOT_ENTRY, KEY, THEIRS, {})
    assert "SAFECACHE_KEY_FILE" in trust.judge(by_a_stranger, Kind.AOT_ENTRY, KEY, None).remedy
    assert trust.judge(b"payload", Kind.AOT_ENTRY, KEY, None).remedy == ""


def test_payload_of_a_seal_whose_algorithm_is_not_known_is_all_of_it():
    content = bytearray(sealed())
    content[-10] = 99
    assert seal.split_unverified(bytes(content)).algorithm == 99 and seal.strip_unverified(bytes(content)) == bytes(
        content
    )


def test_what_does_not_verify_is_used_only_while_observing_and_nothing_is_sealed_after_it(
    settings, caplog, monkeypatch
):
    monkeypatch.setattr(keyring, "_stopped", threading.Event())
    refusal = trust.judge(b"payload", Kind.FX_ENTRY, KEY, None)
    assert not trust.is_observed(refusal, Kind.FX_ENTRY, "/cache/a") and keyring.current().signing is not None
    settings(SAFECACHE="observe")
    not_a_file = refusal._replace(reason=Reason.NOT_A_FILE)
    assert not trust.is_observed(not_a_file, Kind.FX_ENTRY, "/cache/a") and keyring.current().signing is not None
    ephemeral = keyring.get_ephemeral_key()
    for _ in range(2):
        assert trust.is_observed(refusal, Kind.FX_ENTRY, "/cache/a")
        assert keyring.current().signing is None and keyring.find(ephemeral.id) is None
    assert "would refuse FX graph entry /cache/a [unsealed]" in caplog.text and events.read_counters() == {
        "unsealed": 2
    }
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.write(write, b"stopped" if keyring.current().signing is None else b"seals")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 9) == b"stopped"
    safecache.reset()
    assert keyring.current().signing is None, "what this process has in memory is what it was"
