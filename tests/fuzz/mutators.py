"""Ways to change an input of a decoder that know its structure; each draws on a ``random.Random`` and nothing else.

So hypothesis can shrink what they did, and a fuzzer that gives a seed can repeat it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from random import Random

from packs import forged

from fuzz import grammar, world
from fuzz.grammar import Parts
from safecache.reporting.kinds import Kind
from safecache.signing import seal

NUMBERS = (0, 1, 2, 31, 62, 63, 255, 256, 4096, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1)
NAMES = ("kind", "key", "namespace", "provenance", "cpu", "sha256", "stamp", "secret", "public", "private", "format")
WORDS = ("", ".", "..", "/", "../", "\0", "\x1b[2J", "\ud800", "ü", "a" * 300, "*", "[z-a]", "default", "prod/llm")
# In every place where a value can be: each is one that some reader of JSON falls over.
VALUES = (
    "null",
    "true",
    "[]",
    "{}",
    "NaN",
    "-Infinity",
    "1e999",
    "9" * 400,
    "9" * 5000,
    "-0",
    '"\\ud800"',
    '"\\u0000"',
    "[" * 3000,
    "[" * 3000 + "]" * 3000,
    '{"a":' * 2000 + "1" + "}" * 2000,
    '[["cpu","avx2"]]',
    '{"cpu":7}',
    '{"cpu":null}',
    '{"cpu":["avx2"]}',
    '{"a":1,"a":2}',
)


def text(chance: Random) -> str:
    """A word that is hard on whoever makes a path, a pattern or a line of it."""
    return "".join(chance.choice(WORDS) for _ in range(chance.randint(1, 3)))


def _hard(chance: Random) -> bytes:
    return text(chance).encode("utf-8", "surrogatepass")


def value(chance: Random) -> str:
    """Some JSON, or what is none."""
    if chance.random() < 0.3:
        return json.dumps(chance.choice((text(chance), chance.choice(NUMBERS), [text(chance)], {text(chance): 1})))
    return chance.choice(VALUES)


def change_json(content: bytes, chance: Random) -> bytes:
    """A JSON object with a field changed, taken away, added or there twice; or its text in another encoding."""
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError):
        fields = {}
    if not isinstance(fields, dict) or chance.random() < 0.1:
        return value(chance).encode("utf-8", "surrogatepass")
    items = [(name, json.dumps(each)) for name, each in fields.items()]
    name = chance.choice([name for name, _ in items] + list(NAMES))
    how = chance.randrange(5)
    if how < 2:
        items = [(each, value(chance) if each == name else said) for each, said in items]
    elif how == 2:
        items = [(each, said) for each, said in items if each != name]
    else:
        items.insert(chance.randint(0, len(items)), (name, value(chance)))
    changed = "{" + ",".join(f"{json.dumps(each)}:{said}" for each, said in items) + "}"
    coding = chance.choice(("utf-8", "utf-8", "utf-8", "utf-16", "utf-32-be", "utf-8-sig"))
    return changed.encode(coding, "surrogatepass")


def change_bytes(content: bytes, chance: Random) -> bytes:
    """Bytes flipped, cut, doubled, swapped, put in or overwritten by a number of some size."""
    at = chance.randint(0, len(content))
    to = min(len(content), at + chance.randint(0, 64))
    how = chance.randrange(7)
    if how == 0 and at < len(content):
        return content[:at] + bytes([content[at] ^ 1 << chance.randrange(8)]) + content[at + 1 :]
    if how == 1:
        return content[:at] + content[to:]
    if how == 2:
        return content[:at] + content[at:to] * 2 + content[to:]
    if how == 3:
        return content[:at]
    if how == 4:
        return content[to:] + content[at:to] + content[:at]
    if how == 5:
        return content[:at] + chance.randbytes(chance.randint(1, 16)) + content[at:]
    size = chance.choice((2, 4, 8))
    number = (chance.choice(NUMBERS) + chance.choice((-1, 0, 1))) % (1 << 8 * size)
    return content[:at] + number.to_bytes(size, "little") + content[at + size :]


# --- sealed entries


def _swap_fields(parts: Parts, chance: Random) -> Parts:
    kind, key, namespace = chance.choice((world.ASKED, *world.OTHERS))
    other = grammar.take_apart(world.sealed(chance.choice(world.KEYS), (kind, key, namespace), _hard(chance)))
    names = chance.sample(Parts._fields, chance.randint(1, 3))
    return parts._replace(**{name: getattr(other, name) for name in names})


def _size(parts: Parts, chance: Random) -> Parts:
    name = chance.choice(("payload_size", "body_size"))
    right = len(parts.payload) if name == "payload_size" else len(parts.body)
    # The last of these come out right again in arithmetic of 64 bits.
    wrong = chance.choice((*NUMBERS, right - 1, right + 1, -right, -62, (1 << 64) + right, (1 << 32) + right))
    return parts._replace(**{name: wrong})


def _overlap(parts: Parts, chance: Random) -> Parts:
    """One size grows by what the other shrinks, so that the sum is right."""
    moved = chance.choice((1, -1, len(parts.body), -len(parts.payload), 32, -32, chance.choice(NUMBERS)))
    return parts._replace(payload_size=parts.payload_size + moved, body_size=parts.body_size - moved)


def _number(parts: Parts, chance: Random) -> Parts:
    name = chance.choice(("algorithm", "format"))
    return parts._replace(**{name: chance.choice((0, 1, 2, 3, 127, 255))})


def _key_id(parts: Parts, chance: Random) -> Parts:
    return parts._replace(key_id=chance.choice([key.id for key in world.KEYS] + [bytes(8), b"\xff" * 8]))


def _body(parts: Parts, chance: Random) -> Parts:
    how = chance.randrange(4)
    if how == 0:
        kind, key, namespace = chance.choice((world.ASKED, *world.OTHERS))
        stated = {"kind": kind.value, "key": key, "namespace": namespace}
        return parts._replace(body=grammar.body(provenance={}, **stated))
    if how == 1:
        return parts._replace(body=change_bytes(parts.body, chance))
    return parts._replace(body=change_json(parts.body, chance))


def _tag(parts: Parts, chance: Random) -> Parts:
    tag = chance.choice((parts.tag[:-1], parts.tag[: len(parts.tag) // 2], parts.tag * 2, bytes(len(parts.tag)), b""))
    return parts._replace(tag=tag)


def _payload(parts: Parts, chance: Random) -> Parts:
    hostile = b"cos\nsystem\n(S'true'\ntR."
    nested = world.sealed(chance.choice(world.KEYS), chance.choice((world.ASKED, *world.OTHERS)))
    return parts._replace(payload=chance.choice((b"", hostile, nested, parts.payload + nested, parts.content)))


def _move(parts: Parts, chance: Random) -> Parts:
    """Bytes that belong to one part go to its neighbour; the sizes follow, so that everything fits."""
    both = parts.payload + parts.body
    at = chance.randint(0, len(both))
    return parts._replace(payload=both[:at], body=both[at:], payload_size=at, body_size=len(both) - at)


def _payload_bytes(parts: Parts, chance: Random) -> Parts:
    return parts._replace(payload=change_bytes(parts.payload, chance))


_CHANGES: tuple[Callable[[Parts, Random], Parts], ...] = (
    _swap_fields,
    _size,
    _overlap,
    _number,
    _key_id,
    _body,
    _body,
    _tag,
    _payload,
    _move,
    _payload_bytes,
)


def change_entry(content: bytes, chance: Random) -> bytes:
    """A sealed entry with some parts changed; then perhaps made to fit, or sealed again, by a key trusted or not."""
    parts = grammar.take_apart(content)
    for _ in range(chance.randint(0, 3)):
        parts = chance.choice(_CHANGES)(parts, chance)
    if chance.random() < 0.6:
        parts = parts.with_sizes()
    if chance.random() < 0.5:
        parts = parts.signed(chance.choice((*world.GOOD, *world.KEYS)))
    changed = parts.content
    if chance.random() < 0.1:
        trailer = parts.body + parts.tag + parts.footer
        changed = chance.choice((changed + trailer, trailer + changed, changed + changed, changed + parts.footer))
    return change_bytes(changed, chance) if chance.random() < 0.2 else changed


def change_record(content: bytes, chance: Random) -> bytes:
    """The record of a file: its statement changed and sealed as it should be, or the sealed entry that it is."""
    if chance.random() < 0.4:
        return change_entry(content, chance)
    stated = change_json(grammar.take_apart(content).payload, chance)
    question = (Kind.NATIVE_CODE, "abc.so", "default")
    return world.sealed(chance.choice((world.MAC, world.MAC, *world.KEYS)), question, stated)


# --- the rest


def change_key_file(content: bytes, chance: Random) -> bytes:
    """A key file with a field changed, PEM with its base64 or its armour changed, or any bytes."""
    if content.lstrip()[:1] == b"{" and chance.random() < 0.8:
        return change_json(content, chance)
    if content.startswith(b"-----BEGIN") and chance.random() < 0.6:
        lines = content.split(b"\n")
        at = chance.randrange(len(lines))
        try:
            lines[at] = base64.b64encode(change_bytes(base64.b64decode(lines[at]), chance))
        except ValueError:
            lines[at] = chance.choice(
                (b"-----BEGIN PUBLIC KEY-----", b"-----BEGIN PRIVATE KEY-----", lines[at][:-1], b"")
            )
        return b"\n".join(lines)
    return change_bytes(content, chance)


def change_text(content: bytes, chance: Random) -> bytes:
    """A name or a time, with a hard word put in, or its bytes changed."""
    if chance.random() < 0.5:
        return change_bytes(content, chance)
    at = chance.randint(0, len(content))
    return content[:at] + _hard(chance) + content[at:]


def change_pack(content: bytes, chance: Random) -> bytes:
    """A pack: its bytes, what its manifest says, with or without a seal of somebody's, or the tar file around it."""
    try:
        first, *rest = forged.frames(content)
        members = forged.members(first)
        manifest, sealed = members["manifest.json"], members["manifest.json"] + members["manifest.seal"]
    except Exception:  # whatever it takes to read what is no pack any more
        return change_bytes(content, chance)
    how = chance.randrange(4)
    if how == 0:
        return change_bytes(content, chance)
    if how == 1:
        sealed = change_entry(sealed, chance)
    elif how == 2:
        question = (Kind.PACK, "manifest.json", "default")
        sealed = world.sealed(chance.choice(world.KEYS), question, change_json(manifest, chance))
    end = chance.randint(0, len(sealed)) if chance.random() < 0.2 else len(seal.strip_unverified(sealed))
    tar = forged.tar(("manifest.json", sealed[:end]), ("manifest.seal", sealed[end:]))
    return b"".join([forged.compress(change_bytes(tar, chance) if how == 3 else tar), *rest])


def change_remote(content: bytes, chance: Random) -> bytes:
    """What a remote cache answers: the JSON changed, or the entry in it."""
    try:
        entry = base64.b64decode(json.loads(content)["data"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return change_json(content, chance)
    if chance.random() < 0.4:
        return change_json(content, chance)
    return json.dumps({"data": base64.b64encode(change_entry(entry, chance)).decode()}).encode()
