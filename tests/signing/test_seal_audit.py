"""Verifying interprets nothing: no pickle, no import, no code, whatever the bytes are."""

from __future__ import annotations

import json

from conftest import python

WATCH = """
import json, pickle, sys
from safecache.signing import seal
from safecache.signing import keys
from safecache.signing.keys import Key
from safecache.reporting.kinds import Kind

class Hostile:
    def __reduce__(self):
        return exec, ("import wave",)

hostile = pickle.dumps(Hostile())
key, other = Key.derive(b"k" * 32), Key.derive(b"o" * 32)
revoked = Key.derive(b"r" * 32)._replace(revoked=1.0)
farm, stranger = (Key.make_ed25519(keys.derive_public(private), private) for private in (b"f" * 32, b"s" * 32))
limited = farm._replace(id=b"limited!", namespaces=("prod",))
sealed = seal.attach(hostile, Kind.AOT_ENTRY, "key", key, {})
contents = {
    "unsealed": hostile,
    "damaged": b"x" + sealed[1:],
    "wrong size": sealed[1:],
    "unknown format": sealed[:-9] + b"\\x7f" + sealed[-8:],
    "unknown key": seal.attach(hostile, Kind.AOT_ENTRY, "key", other, {}),
    "bad seal": seal.attach(hostile, Kind.AOT_ENTRY, "key", Key(key.id, other.secret), {}),
    "other kind": seal.attach(hostile, Kind.FX_ENTRY, "key", key, {}),
    "other cache key": seal.attach(hostile, Kind.AOT_ENTRY, "yek", key, {}),
    "other namespace": seal.attach(hostile, Kind.AOT_ENTRY, "key", key, {}, "other"),
    "revoked key": seal.attach(hostile, Kind.AOT_ENTRY, "key", revoked, {}),
    "key not allowed": seal.attach(hostile, Kind.AOT_ENTRY, "key", farm._replace(id=limited.id), {}),
    "None": sealed,
    "signed": seal.attach(hostile, Kind.AOT_ENTRY, "key", farm, {}),
    "badly signed": seal.attach(hostile, Kind.AOT_ENTRY, "key", stranger._replace(id=farm.id), {}),
}
seen = []

def watch(event, arguments):
    if event in ("import", "exec", "compile", "open", "marshal.loads") or event.split(".")[0] in ("pickle", "os"):
        seen.append(event)

find = {each.id: each for each in (key, revoked, farm.extract_public(), limited.extract_public())}.get
keys.verify(farm.public, bytes(64), b"")  # the library is imported by the first signature
sys.addaudithook(watch)
reasons = [seal.verify(content, Kind.AOT_ENTRY, "key", find).reason for content in contents.values()]
for content in contents.values():
    seal.strip_unverified(content)
during = list(seen)
pickle.loads(hostile)
print(json.dumps([list(contents), [reason.value if reason else "None" for reason in reasons], during, seen]))
"""


def test_verifying_hostile_content_runs_and_imports_nothing():
    done = python(WATCH)
    assert done.returncode == 0, done.stderr
    expected, reasons, during, after = json.loads(done.stdout)
    meant = {"wrong size": "damaged", "signed": "None", "badly signed": "bad seal"}
    expected = [meant.get(name, name) for name in expected]
    assert reasons == expected
    assert during == []
    # That the hook would have seen it:
    assert {"pickle.find_class", "exec", "import"} <= set(after)
