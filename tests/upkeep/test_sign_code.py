"""`sign`, `verify` and `adopt` see to compiled code too: Inductor's libraries, and Triton's files wherever they lie."""

from __future__ import annotations

import json

import pytest
from helpers import key_cases
from helpers.key_cases import PRIVATE, PUBLIC, put

from safecache.places import layout
from safecache.places.layout import CodeFile
from safecache.reporting.kinds import Kind
from safecache.signing import key_files, keyring
from safecache.store import attestations, gate, manifests

INDUCTOR, KERNEL, NESTED = "ab/cabcd.main.so", f"{'K' * 52}/mul.cubin", f"triton/0/{'N' * 52}/add.json"


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "cache"
    for name in (INDUCTOR, KERNEL, NESTED):
        path = root / name
        path.parent.mkdir(parents=True)
        path.write_bytes(name.encode())
    (root / "ab" / "cabcd.py").write_text("source")
    return root


@pytest.fixture(autouse=True)
def forgetful(monkeypatch):
    """As each time in another process."""

    def forget():
        attestations._state.reset()
        keyring.renew()

    forget()
    return forget


@pytest.fixture
def run(run, forgetful):
    def run_in_another_process(*arguments):
        forgetful()
        return run(*arguments)

    return run_in_another_process


@pytest.fixture
def of_a_farm(root, settings, tmp_path):
    """The code, attested by a key of which this user has the public part."""
    key_files.save(str(tmp_path / "private"), PRIVATE)
    settings(SAFECACHE_KEY_FILE=tmp_path / "private")
    for file in layout.walk_code(str(root)):
        gate.attest_file(file)
    settings(SAFECACHE_KEY_FILE="")
    put(PUBLIC)
    return root


def test_code_is_found_where_inductor_and_triton_put_it(root):
    found = {file.path: (file.root, file.kind) for file in layout.walk_code(str(root))}
    assert found == {
        str(root / INDUCTOR): (str(root), Kind.NATIVE_CODE),
        str(root / KERNEL): (str(root), Kind.KERNEL),
        str(root / NESTED): (str(root / "triton" / "0"), Kind.KERNEL),
    }


def test_verify_names_code_that_nobody_has_sealed_or_that_was_altered(run, of_a_farm):
    assert run("verify", of_a_farm).lines == ["0 entries, 3 files of code, 3 code verified"]
    (of_a_farm / KERNEL).write_bytes(b"evil")
    (of_a_farm / "ab" / "cother.so").write_bytes(b"planted")
    report = json.loads(run("verify", of_a_farm, "--json").out)
    assert report["code"] == 4 and report["outcomes"] == {"code verified": 2, "damaged": 1, "unsealed": 1}
    assert {each["path"]: each["reason"] for each in report["refused"]} == {
        str(of_a_farm / KERNEL): "damaged",
        str(of_a_farm / "ab" / "cother.so"): "unsealed",
    }
    assert (of_a_farm / KERNEL).exists()


def test_code_of_a_trusted_key_is_signed_with_ours_and_the_rest_left(run, of_a_farm):
    (of_a_farm / KERNEL).write_bytes(b"evil")
    report = json.loads(run("sign", of_a_farm, "--json").out)
    assert report["sealed"] == 2 and [path for path, _ in report["skipped"]] == [str(of_a_farm / KERNEL)]
    assert json.loads(run("sign", of_a_farm, "--json").out)["already_sealed"] == 2
    put(key_cases.revoked(PUBLIC))
    outcomes = json.loads(run("verify", of_a_farm, "--json").out)["outcomes"]
    assert outcomes == {"code verified": 2, "revoked key": 1}
    verdict, _ = manifests.read(CodeFile(str(of_a_farm / INDUCTOR), str(of_a_farm)))
    assert verdict.provenance["countersigned"] == PUBLIC.id.hex() and "cpu" in verdict.provenance


def test_adopt_seals_the_code_of_triton_too(run, root):
    assert run("verify", root).code == 1
    assert run("adopt", root).lines == ["3 files sealed, 0 were sealed already."]
    assert run("verify", root).code == 0
