"""Verifying interprets nothing: no pickle, no import, no code, whatever the bytes are."""

from __future__ import annotations

import json

from conftest import python

WATCH = """
import json, pickle, sys
from safecache import seal
from safecache.keyring import Key
from safecache.seal import Kind

class Hostile:
    def __reduce__(self):
        return exec, ("import wave",)

hostile = pickle.dumps(Hostile())
key, other = Key.derive(b"k" * 32), Key.derive(b"o" * 32)
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
    "None": sealed,
}
seen = []

def watch(event, arguments):
    if event in ("import", "exec", "compile", "open", "marshal.loads") or event.split(".")[0] in ("pickle", "os"):
        seen.append(event)

find = {key.id: key}.get
sys.addaudithook(watch)
reasons = [seal.verify(content, Kind.AOT_ENTRY, "key", find).reason for content in contents.values()]
for content in contents.values():
    seal.payload_of(content)
during = list(seen)
pickle.loads(hostile)
print(json.dumps([list(contents), [reason.value if reason else "None" for reason in reasons], during, seen]))
"""


def test_verifying_hostile_content_runs_and_imports_nothing():
    done = python(WATCH)
    assert done.returncode == 0, done.stderr
    expected, reasons, during, after = json.loads(done.stdout)
    expected[expected.index("wrong size")] = "damaged"
    assert reasons == expected
    assert during == []
    # That the hook would have seen it:
    assert {"pickle.find_class", "exec", "import"} <= set(after)
