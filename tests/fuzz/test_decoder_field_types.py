"""Every decoder of JSON looks at the type of a field before it uses it: any value in any field is an answer or a refusal.

What CPython lets pass changes: from 3.12 on ``{}[:-1]`` raises KeyError, where before it raised TypeError.
"""

from __future__ import annotations

import copy
import json
import os
import time
import zlib

import pytest
from helpers.key_cases import MAC

from safecache.built_code import build_keys, triton_place
from safecache.cli.gc import list_crashes
from safecache.errors import KeyringError
from safecache.explain import explanations, key_records
from safecache.history import run_summary
from safecache.isolation import crashes
from safecache.isolation.client import Limits
from safecache.places.layout import CodeFile
from safecache.reporting.kinds import Kind
from safecache.settings import units
from safecache.signing import key_files, keyring, seal
from safecache.store import manifests, quarantine
from safecache.upkeep import catalogue

VALUES = [
    None,
    True,
    0,
    -1,
    10**400,
    float("nan"),
    float("inf"),
    0.5,
    "",
    "..",
    "\x1b[2J",
    [],
    [[]],
    {},
    {"": {}},
    {"how": "signal"},
    "x" * 100,
]


def fields(document, path=()):
    """The places of all values in a document, that of the document itself included."""
    yield path
    items = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for name, value in items:
        yield from fields(value, (*path, name))


def changed(document):
    """The document with each of VALUES in each of its places; and without each field."""
    for path in fields(document):
        for value in VALUES:
            yield place(document, path, value)
        if path:
            yield place(document, path, value, remove=True)


def place(document, path, value, *, remove=False):
    if not path:
        return value
    result = copy.deepcopy(document)
    inner = result
    for step in path[:-1]:
        inner = inner[step]
    if remove:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return result


@pytest.fixture
def key():
    return keyring.current().signing


def sealed(key, content, kind, name, provenance=None):
    return seal.attach(content, kind, name, key, provenance or {})


def check_key_file(document, key, tmp_path):
    try:
        decoded = key_files.recognise(json.dumps(document).encode(), any_secret=False)
    except KeyringError as error:
        assert str(error).isprintable()
        return
    decoded.find_objection(time.time())
    decoded.can_supply("default")
    key_files.encode(decoded)


def check_seal_body(document, key, tmp_path):
    body = json.dumps(document).encode()
    footer = seal._FOOTER.pack(
        seal.hashlib.sha256(b"payload").digest(), key.id, 7, len(body), key.algorithm.number, seal.FORMAT, seal._MAGIC
    )
    content = b"payload" + body + key.make_tag(seal._DOMAIN + footer + body) + footer
    verdict = seal.verify(content, Kind.MEMO, "key", {key.id: key}.get)
    assert verdict.reason is not None or document["key"] == "key"


def check_record(document, key, tmp_path):
    path = str(tmp_path / "ab" / "abc.so")
    record = sealed(key, json.dumps(document).encode(), Kind.NATIVE_CODE, manifests.record_name(CodeFile(path)))
    verdict, stated = manifests.verify(record, CodeFile(path))
    assert verdict.reason is not None or isinstance(stated["sha256"], str)


def check_build_key(document, key, tmp_path):
    root = str(tmp_path)
    place = manifests.record_path(CodeFile("own", root, Kind.MEMO))
    os.makedirs(os.path.dirname(place), exist_ok=True)
    with open(place, "wb") as file:
        file.write(sealed(key, json.dumps(document).encode(), Kind.MEMO, "own"))
    assert isinstance(build_keys._read_record(root, "own", "a stamp"), (str, type(None)))


def check_crash_note(document, key, tmp_path):
    place = crashes._make_path(str(tmp_path), "ab" * 32)
    os.makedirs(os.path.dirname(place), exist_ok=True)
    with open(place, "wb") as file:
        file.write(sealed(key, json.dumps(document).encode(), Kind.KNOWN_BAD, "ab" * 32))
    note = crashes._read_note(str(tmp_path), "ab" * 32)
    if note is not None:
        note.is_valid(Limits(1.0, 1), time.time())
        assert list(list_crashes(str(tmp_path))) is not None


def check_crash_report(document, key, tmp_path):
    directory = os.path.join(str(tmp_path), ".safecache", "crashes", "abc")
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, "report.json"), "w") as file:
        json.dump(document, file)
    assert all(isinstance(row["hash"], str) for row in list_crashes(str(tmp_path)))


def check_key_record(document, key, tmp_path):
    root, record = str(tmp_path), json.dumps(document).encode()
    place = os.path.join(root, ".safecache", "keys", "fx", "0" * 64)
    os.makedirs(place, exist_ok=True)
    with open(os.path.join(place, f"{KEY}.json.gz"), "wb") as file:
        packer = zlib.compressobj(wbits=key_records._GZIP)
        file.write(packer.compress(record) + packer.flush())
    for found in key_records.list_records(root):
        assert units.write_time(found.made) and units.write_time(found.first)
        assert explanations.explain(found, root, saved=True)


def check_journal_line(document, key, tmp_path):
    line = run_summary._parse_line(json.dumps(document).encode())
    summary = None if line is None else run_summary.summarise([line], run_summary.ALL)
    assert summary is None or all(map(str, summary.counts.values()))


def check_quarantine_note(document, key, tmp_path):
    path = tmp_path / "note.json"
    path.write_text(json.dumps(document))
    assert all(isinstance(text, str) for text in quarantine.read_note(str(path)).values())


def check_kernel_metadata(document, key, tmp_path):
    path = tmp_path / "k.json"
    path.write_text(json.dumps(document))
    (tmp_path / "__grp__k.json").write_text("{}")
    assert catalogue.read_unverified_metadata([str(path), str(tmp_path / "__grp__k.json")])


def check_list_of_a_group(document, key, tmp_path):
    names = triton_place.parse_names(json.dumps(document).encode())
    for name in names or ():
        assert os.path.dirname(os.path.normpath(tmp_path / name)) == str(tmp_path)


def check_factors(document, key, tmp_path):
    directory = tmp_path / "key" / "rank_0_0" / "backbone"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "cache_key_factors.json").write_text(json.dumps(document))
    found = explanations.find_factors(str(tmp_path))
    for each in found:
        explanations.compare_factors(each, each._replace(values={}))


KEY = "a" * 52
DOCUMENTS = {
    check_key_file: json.loads(
        key_files.encode(MAC._replace(created=1.0, expires=4e9, revoked=2.0, why_revoked="lost", name="own"))
    ),
    check_seal_body: {"kind": "memo", "key": "key", "namespace": "default", "provenance": {"torch": "2.15.0"}},
    check_record: {"sha256": "0" * 64, "stamp": [1, 2, 3, 4], "files": {"k.json": "0" * 64}},
    check_build_key: {"stamp": "a stamp", "key": "a key"},
    check_crash_note: crashes.Note(crashes.Crash("signal", 6, "ptx"), "k", {"N": 1}, None, 1e9)._asdict()
    | {"crash": crashes.Crash("signal", 6, "ptx")._asdict()},
    check_crash_report: {"hash": "ab", "time": "", "kernel": "k", "stage": "ptx", "ended": {"words": "SIGABRT"}},
    check_key_record: {
        "format": 1,
        "layer": "fx",
        "key": KEY,
        "name": "f",
        "made": 1e9,
        "first": 1e9,
        "process": "p",
        "components": [["part", "0" * 64, "text"]],
    },
    check_journal_line: {
        "time": 1e9,
        "pid": 1,
        "run": "r",
        "host": "h",
        "layer": "fx",
        "outcome": "hit",
        "reason": None,
        "counts": {"fx hit": 1},
    },
    check_quarantine_note: {"from": "/cache/ab/abc.so", "reason": "damaged", "time": "2026-01-01T00:00:00Z"},
    check_kernel_metadata: {"name": "k", "target": {"backend": "cuda", "arch": 90}, "num_warps": 4, "shared": 0},
    check_list_of_a_group: {"child_paths": {"k.json": "/cache/k.json", "k.cubin": "/cache/k.cubin"}},
    check_factors: {"env": {"VLLM_X": "1"}, "config_hash": "a", "code": {"a": [1]}},
}


@pytest.mark.parametrize("check", DOCUMENTS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_any_value_in_any_field(check, key, tmp_path):
    document = DOCUMENTS[check]
    check(document, key, tmp_path)
    for number, each in enumerate(changed(document)):
        try:
            check(each, key, tmp_path)
        except Exception as error:
            pytest.fail(f"{number}: {type(error).__name__}: {error}: {json.dumps(each)[:500]}")
