"""Whatever is exchanged while `adopt` and `sign` work, and at whichever moment: they seal what they have looked at.

Files are exchanged at every system call of a command, for one that has no right to be sealed, and put back later.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
import sys

import pytest
from helpers.key_cases import PRIVATE, PUBLIC, put

from safecache.built_code import packages
from safecache.fs import filesystem
from safecache.places import layout
from safecache.signing import key_files, keyring, seal
from safecache.store import attestations, manifests
from safecache.upkeep import audit
from safecache.upkeep.audit import adopt

GOOD, EVIL = pickle.dumps("good"), pickle.dumps("evil")
ENTRY, LIBRARY = f"aotautograd/akey/{layout.name_entry(GOOD)}", "ab/cabcd.main.so"
GENUINE = (GOOD, hashlib.sha256(GOOD).hexdigest())
# After how many more calls what was there before is there again: each moment has one of these, and never.
BACK, NEVER = (1, 2, 4), sys.maxsize
CALLS = {
    "descend",
    "fstat",
    "link",
    "listdir",
    "lstat",
    "mkdir",
    "open",
    "pread",
    "read",
    "rename",
    "replace",
    "scandir",
    "stat",
}


class Swapper:
    """Exchanges the file at ``path`` for ``evil`` before call number ``at``, and back again ``back`` calls later."""

    def __init__(self, monkeypatch):
        self.calls, self.works = 0, False
        for module in (os, filesystem):
            for name in CALLS & set(vars(module)):
                monkeypatch.setattr(module, name, self.stepping(getattr(module, name)))

    def stepping(self, call):
        def stepped(*rest, **named):
            if self.works:
                self.works = False
                self.step()
                self.works = True
            return call(*rest, **named)

        return stepped

    def begin(self, path, evil, at, back):
        self.path, self.evil, self.at, self.back = path, evil, at, back
        self.spare = path.with_name(f"{path.name}.spare")
        self.calls, self.works = 0, True

    def step(self):
        self.calls += 1
        if self.calls == self.at and self.path.exists():
            os.rename(self.path, self.spare)
            shutil.copy(self.evil, self.path)
        elif self.calls == self.at + self.back and self.spare.exists():
            os.rename(self.spare, self.path)


@pytest.fixture
def swapper(monkeypatch):
    return Swapper(monkeypatch)


@pytest.fixture
def evil(tmp_path):
    """A file that anybody could have written."""
    path = tmp_path / "evil"
    path.write_bytes(EVIL)
    path.chmod(0o666)
    return path


@pytest.fixture
def stock(tmp_path):
    """A cache as stock torch leaves it."""
    root = tmp_path / "cache"
    for name in (ENTRY, LIBRARY):
        (root / name).parent.mkdir(parents=True)
        (root / name).write_bytes(GOOD)
    return root


@pytest.fixture
def of_a_farm(stock, settings, tmp_path):
    """The same, sealed by a key of which this user has the public part."""
    key_files.save(str(tmp_path / "private"), PRIVATE)
    settings(SAFECACHE_KEY_FILE=tmp_path / "private")
    assert adopt(str(stock)).sealed == 2
    settings(SAFECACHE_KEY_FILE="")
    put(PUBLIC)
    return stock


@pytest.fixture
def each_exchange(swapper, evil, monkeypatch):
    """Run something on copies of a cache, while the file at a path is exchanged: at every moment there is."""

    def exchange(run, root, path, expected=GENUINE):
        copy = root.with_name("copy")

        def at(moment, back):
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(root, copy)
            attestations._state.reset()
            swapper.begin(copy / path, evil, moment, back)
            run(copy)
            swapper.works = False
            return swapper.calls

        calls = at(0, NEVER)
        assert calls > 20 and {*sealed_by_us(copy)} == {*expected}
        for moment in range(1, calls + 1):
            for back in (BACK[moment % len(BACK)], NEVER):
                at(moment, back)
                assert {*sealed_by_us(copy)} <= {*expected}

    return exchange


def sealed_by_us(root):
    """What our own key has sealed, or stated the digest of, anywhere in there."""
    ours = keyring.current().signing
    for path in root.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        footer = seal.split_unverified(content)
        if footer is not None and footer.key_id == ours.id:
            payload = seal.strip_unverified(content)
            yield manifests.read_unverified(content).get("sha256") or payload


@pytest.mark.parametrize("path", [ENTRY, LIBRARY])
def test_adopt_seals_nothing_that_others_could_have_written(stock, path, each_exchange):
    each_exchange(lambda root: adopt(str(root)), stock, path)


def test_adopt_seals_no_package_that_others_could_have_written(tmp_path, each_exchange):
    root = tmp_path / "packages"
    root.mkdir()
    (root / "model.pt2").write_bytes(GOOD)

    def run(root):
        audit.seal_each([(str(root), lambda: packages.adopt(str(root / "model.pt2")))])

    each_exchange(run, root, "model.pt2", {GOOD})


def test_sign_seals_nothing_that_no_trusted_key_has_sealed(of_a_farm, each_exchange):
    def run(root):
        audit.countersign(layout.walk(str(root)), layout.walk_code(str(root)))

    for path in [path for path in of_a_farm.rglob("*") if path.is_file()]:
        each_exchange(run, of_a_farm, path.relative_to(of_a_farm))
