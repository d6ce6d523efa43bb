"""A package of AOTInductor is loaded if its seal holds, from where nobody can exchange it any more."""

from __future__ import annotations

import hashlib
import io
import os
import zipfile

import pytest

from safecache import session
from safecache.built_code import packages
from safecache.errors import EntryRefusedError, KeyringError
from safecache.places.layout import CodeFile
from safecache.reporting import events
from safecache.reporting.kinds import Kind
from safecache.signing import keyring, seal
from safecache.signing.keys import Key
from safecache.store import attestations, gate
from safecache.upkeep.audit import adopt

CODE = b"\x7fELF library"


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    session.reset()


@pytest.fixture
def sources(tmp_path):
    """A library that this process has made, and what describes it."""
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "model.so").write_bytes(CODE)
    (cache / "metadata.json").write_bytes(b"{}")
    gate.attest_file(CodeFile(str(cache / "model.so"), str(cache)))
    return [(str(cache / name), str(cache)) for name in ("model.so", "metadata.json")]


def packed(paths, target):
    with zipfile.ZipFile(target, "w") as archive:
        for path in paths:
            archive.write(path, f"model/data/aotinductor/model/{os.path.basename(path)}")
    return target


def make(path, sources):
    return packages.build_and_seal_package(
        str(path), sources, lambda place: packed([source for source, _ in sources], place)
    )


@pytest.fixture
def package(tmp_path, sources):
    path = tmp_path / "out" / "model.pt2"
    path.parent.mkdir()
    make(path, sources)
    return path


def content_of(place):
    with zipfile.ZipFile(place) as archive:
        assert archive.testzip() is None
        return archive.read("model/data/aotinductor/model/model.so")


def refusal(target, **settings):
    with pytest.raises(EntryRefusedError) as refused, packages.verify_package(target):
        pytest.fail("it was let through")
    return str(refused.value)


def test_sealed_package_is_loaded_from_where_it_lies_and_is_still_a_zip_file(package):
    with packages.verify_package(package) as place:
        assert place == str(package) and content_of(place) == CODE
    assert events.read_counters()["verified"] == 1


def test_renamed_and_linked_it_is_the_same(package, tmp_path):
    other = tmp_path / "other.pt2"
    os.rename(package, other)
    (tmp_path / "link").symlink_to(other)
    with packages.verify_package(tmp_path / "link") as place:
        assert place == str(other)


def test_package_is_a_file_object(sources):
    file = io.BytesIO()
    packages.build_and_seal_package(file, sources, lambda target: packed([path for path, _ in sources], target))
    assert file.tell() == 0
    with packages.verify_package(file) as place:
        assert content_of(place) == CODE
    assert not os.path.exists(place)
    assert "given as a file object" in refusal(io.BytesIO(file.getvalue()[:-1]))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda content: content.replace(CODE, CODE[::-1]), "does not match the digest"),
        (lambda content: seal.strip_unverified(content), "no seal"),
        (lambda content: content[:-20], "no seal"),
        (lambda content: content + seal.strip_unverified(content), "no seal"),
        (
            lambda content: seal.strip_unverified(content) + b"x" + content[len(seal.strip_unverified(content)) :],
            "does not match the digest",
        ),
        (lambda content: content[:-100] + bytes([content[-100] ^ 1]) + content[-99:], "altered or forged"),
    ],
    ids=["flipped", "unsealed", "cut", "followed", "longer", "seal"],
)
@pytest.mark.parametrize("mode", [0o755, 0o777], ids=["private", "exposed"])
def test_changed_package_is_refused(package, change, said, mode):
    package.write_bytes(change(package.read_bytes()))
    package.parent.chmod(mode)
    assert said in refusal(package) and f"package {package}" in refusal(package)


def test_entry_under_the_same_key_is_no_package(package):
    key = keyring.current().signing
    package.write_bytes(seal.attach(seal.strip_unverified(package.read_bytes()), Kind.AOT_MODEL, "", key, {}))
    assert "another kind" in refusal(package)


def test_package_of_an_unknown_key_is_refused_and_says_what_to_do(package):
    unknown = Key.make_mac(os.urandom(32))
    package.write_bytes(seal.attach(seal.strip_unverified(package.read_bytes()), Kind.PACKAGE, "", unknown, {}))
    assert f"sealed by key {unknown.id.hex()}" in refusal(package)
    assert f"safecache adopt {package}" in refusal(package)


def test_where_others_can_write_a_copy_is_loaded(package):
    package.parent.chmod(0o777)
    with packages.verify_package(package) as place:
        assert place != str(package)
        package.write_bytes(b"exchanged")
        assert content_of(place) == CODE
    assert not os.path.exists(place)


def test_giant_that_others_have_put_there_is_not_copied(package, monkeypatch):
    package.parent.chmod(0o777)
    package.unlink()
    with open(package, "wb") as file:
        file.truncate(1 << 40)
    monkeypatch.setattr(packages.opening, "copy_regular", lambda *args, **kwargs: pytest.fail("it is copied"))
    assert "no seal" in refusal(package)


@pytest.mark.parametrize("what", ["unsealed", "flipped", "exposed"])
def test_trust_in_what_is_private_is_no_trust_in_what_is_broken_or_exposed(package, settings, what):
    settings(SAFECACHE_TRUST="private")
    content = package.read_bytes()
    package.write_bytes(content.replace(CODE, CODE[::-1]) if what == "flipped" else seal.strip_unverified(content))
    if what == "exposed":
        package.parent.chmod(0o777)
    if what == "unsealed":
        with packages.verify_package(package) as place:
            assert place == str(package)
    else:
        refusal(package)


@pytest.mark.parametrize("trust", ["signed", "private"])
def test_directory_is_taken_where_private_is_enough(package, tmp_path, settings, trust):
    settings(SAFECACHE_TRUST=trust)
    with zipfile.ZipFile(package) as archive:
        archive.extractall(tmp_path / "unpacked")
    if trust == "signed":
        assert "a directory has no seal" in refusal(tmp_path / "unpacked")
        return
    with packages.verify_package(tmp_path / "unpacked") as place:
        assert place == str(tmp_path / "unpacked")
    library = tmp_path / "unpacked/model/data/aotinductor/model/model.so"
    library.chmod(0o666)
    refusal(tmp_path / "unpacked")


def test_what_is_missing_fails_as_in_stock(tmp_path):
    with packages.verify_package(tmp_path / "missing.pt2") as place:
        assert place == tmp_path / "missing.pt2"


def test_package_that_was_verified_is_not_verified_again_further_in(package):
    with packages.verify_package(package) as place, packages.verify_package(place) as again:
        assert again == place
    assert events.read_counters()["verified"] == 1


# --- what is sealed


def test_code_that_was_exchanged_before_it_was_packed_is_not_sealed(tmp_path, sources):
    path = tmp_path / "model.pt2"
    with open(sources[0][0], "wb") as file:
        file.write(b"\x7fELF planted")
    make(path, sources)
    assert seal.split_unverified(path.read_bytes()) is None and events.read_counters()["unsealed"] == 1
    refusal(path)


def test_code_that_was_built_by_another_process_needs_its_record(tmp_path, sources, monkeypatch):
    attestations._state.reset()
    make(tmp_path / "model.pt2", sources)
    with packages.verify_package(tmp_path / "model.pt2"):
        pass


def test_code_of_no_known_source_is_not_sealed(tmp_path, sources):
    def make_more(place):
        packed([path for path, _ in sources], place)
        with zipfile.ZipFile(place, "a") as archive:
            archive.writestr("model/data/aotinductor/model/more.so", b"\x7fELF more")

    packages.build_and_seal_package(str(tmp_path / "model.pt2"), sources, make_more)
    assert "no seal" in refusal(tmp_path / "model.pt2")


def test_what_others_could_have_exchanged_is_not_sealed(tmp_path, sources):
    os.chmod(tmp_path / "cache", 0o777)
    make(tmp_path / "model.pt2", sources)
    refusal(tmp_path / "model.pt2")


def test_where_others_can_write_it_is_made_out_of_their_reach(tmp_path, sources):
    place = tmp_path / "exposed"
    place.mkdir()
    place.chmod(0o777)
    made = []

    def write(target):
        made.append(target)
        return packed([path for path, _ in sources], target)

    assert packages.build_and_seal_package(str(place / "model.pt2"), sources, write) == str(place / "model.pt2")
    assert os.path.basename(made[0]) == "model.pt2" and not made[0].startswith(str(place))
    assert os.listdir(place) == ["model.pt2"]
    with packages.verify_package(place / "model.pt2") as loaded:
        assert content_of(loaded) == CODE


def test_package_without_a_key_is_as_stock_writes_it(tmp_path, sources, monkeypatch):
    ring = keyring.current()
    monkeypatch.setattr(keyring, "current", lambda: ring._replace(signing=None, problem="no home"))
    make(tmp_path / "model.pt2", sources)
    assert seal.split_unverified((tmp_path / "model.pt2").read_bytes()) is None
    assert content_of(tmp_path / "model.pt2") == CODE


# --- adopt


@pytest.mark.parametrize("mode", [0o755, 0o1777], ids=["private", "sticky"])
def test_package_of_stock_is_adopted_on_the_users_word(package, mode):
    package.parent.chmod(mode)
    package.write_bytes(seal.strip_unverified(package.read_bytes()))
    assert adopt(str(package))._asdict() == {"sealed": 1, "already_sealed": 0, "skipped": []}
    assert adopt(str(package))._asdict() == {"sealed": 0, "already_sealed": 1, "skipped": []}
    with packages.verify_package(package) as place:
        assert content_of(place) == CODE


@pytest.mark.parametrize("what", ["exposed", "damaged"])
def test_package_that_nobody_can_answer_for_is_not_adopted(package, what):
    content = package.read_bytes()
    if what == "exposed":
        package.write_bytes(seal.strip_unverified(content))
        package.parent.chmod(0o777)
    else:
        package.write_bytes(content.replace(CODE, CODE[::-1]))
    before = hashlib.sha256(package.read_bytes()).digest()
    assert [path for path, _ in adopt(str(package)).skipped] == [str(package)]
    assert hashlib.sha256(package.read_bytes()).digest() == before and os.listdir(package.parent) == [package.name]


def test_program_that_holds_no_code_is_no_package(package, tmp_path):
    with zipfile.ZipFile(tmp_path / "program.pt2", "w") as archive:
        archive.writestr("program/models/model.json", b"{}")
    assert packages._has_code(package) and not packages._has_code(tmp_path / "program.pt2")
    assert not packages._has_code(tmp_path / "missing.pt2") and not packages._has_code(io.BytesIO(b"no zip file"))
    file = io.BytesIO(package.read_bytes())
    assert packages._has_code(file) and file.tell() == 0


def test_file_that_can_only_be_written_gets_no_seal_and_a_warning(tmp_path, sources):
    with open(tmp_path / "model.pt2", "wb") as file:
        packages.build_and_seal_package(file, sources, lambda target: packed([path for path, _ in sources], target))
    assert content_of(tmp_path / "model.pt2") == CODE and events.read_counters()["unsealed"] == 1


def test_without_a_key_nothing_is_adopted(package, monkeypatch):
    package.write_bytes(seal.strip_unverified(package.read_bytes()))
    ring = keyring.current()
    monkeypatch.setattr(keyring, "current", lambda: ring._replace(signing=None, problem="no home"))
    with pytest.raises(KeyringError, match="no home"):
        packages.adopt(str(package))
    assert seal.split_unverified(package.read_bytes()) is None
