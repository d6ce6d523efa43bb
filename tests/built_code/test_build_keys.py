"""The keys of torch and Triton are read from their record only while none of the files that they hash has changed."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace

import pytest

from safecache.built_code import build_keys
from safecache.built_code.build_keys import Installation
from safecache.signing import keyring


class Key:
    """One of an installation in ``top``, asked for as each process does; ``computed`` counts what it is computed."""

    def __init__(self, base, packages=False):
        self.top, self.root, self.packages, self.also = base / "torch", base / "cache", packages, "2.15"
        self.computed = 0

    def ask(self, name="torch_key", value=None):
        build_keys._keys.reset()
        installation = Installation(str(self.top), self.also, self.packages)
        return build_keys.find_key(name, installation, lambda: str(self.root), lambda: self._compute(value))

    def _compute(self, value):
        self.computed += 1
        return value or f"value {self.computed}"

    def write(self, name, content="x"):
        path = self.top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Files are kept however new: no test can make one that changed long ago."""
    monkeypatch.setattr(build_keys, "_SETTLED", -1.0)


@pytest.fixture
def installed(tmp_path):
    key = Key(tmp_path)
    for name in ("__init__.py", "_inductor/__init__.py", "_inductor/codecache.py", "lib/libtorch.so"):
        key.write(name)
    return key


def test_second_process_does_not_compute_it(installed):
    assert [installed.ask(), installed.ask()] == ["value 1", "value 1"] and installed.computed == 1


def test_one_process_looks_once(installed):
    first = installed.ask()
    installed.write("__init__.py", "changed")
    installation = Installation(str(installed.top), installed.also, packages=False)
    again = build_keys.find_key("torch_key", installation, lambda: str(installed.root), lambda: "another")
    assert again == first


def replace(path):
    other = path.with_name("new")
    other.write_bytes(path.read_bytes())
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    other.replace(path)


def edit_and_reset_times(path):
    status = path.stat()
    with path.open("r+") as file:
        file.write("y")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


CHANGES = {
    "edited in place, its times reset": edit_and_reset_times,
    "replaced by a file of the same size and time": replace,
    "removed": lambda path: path.unlink(),
    "renamed": lambda path: path.rename(path.with_name("other.py")),
    "new beside it": lambda path: path.with_name("new.py").write_text(""),
    "new in a new package": lambda path: (path.parent / "new").mkdir() or (path.parent / "new" / "a.py").write_text(""),
    "made a link to one alike": lambda path: path.rename(path.with_name("a")) and path.symlink_to("a"),
}


@pytest.mark.parametrize("name", ["__init__.py", "_inductor/codecache.py", "lib/libtorch.so"])
@pytest.mark.parametrize("change", CHANGES)
def test_it_is_computed_anew_once_a_file_is(installed, name, change):
    installed.ask()
    time.sleep(0.01)  # a tick of the kernel's clock
    CHANGES[change](installed.top / name)
    assert [installed.ask(), installed.ask()] == ["value 2", "value 2"]


def test_file_behind_a_link_counts(installed, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "backend.py").write_text("")
    (installed.top / "backends").symlink_to(tmp_path / "elsewhere")
    (installed.top / "round").symlink_to(installed.top)
    assert [installed.ask(), installed.ask()] == ["value 1", "value 1"]
    (tmp_path / "elsewhere" / "backend.py").write_text("changed")
    assert installed.ask() == "value 2"


def test_version_that_the_package_gives_itself_counts(installed):
    installed.ask()
    installed.also = "2.16"
    assert installed.ask() == "value 2"


def test_headers_beside_the_packages_do_not_count_but_what_lies_in_a_package_does(installed):
    installed.packages = True
    installed.ask()
    installed.write("lib/libtorch.so", "changed")
    assert installed.ask() == "value 1"
    installed.write("_inductor/codegen/aoti_runtime/interface.cpp", "new, in a directory that is no package")
    assert installed.ask() == "value 2"
    installed.write("lib/__init__.py")
    assert installed.ask() == "value 3"


def test_compiled_python_does_not_count(installed):
    installed.ask()
    installed.write("_inductor/__pycache__/codecache.cpython-311.pyc")
    assert installed.ask() == "value 1"


def test_it_is_not_kept_while_a_file_is_so_new_that_it_could_change_unseen(installed, monkeypatch):
    monkeypatch.setattr(build_keys, "_SETTLED", 60.0)
    assert [installed.ask(), installed.ask()] == ["value 1", "value 2"]


def test_it_is_not_kept_if_a_file_changes_while_it_is_computed(installed):
    real = installed._compute

    def compute(value):
        installed.write("__init__.py", f"changed {installed.computed}")
        return real(value)

    installed._compute = compute
    assert [installed.ask(), installed.ask()] == ["value 1", "value 2"]


def test_each_key_and_each_installation_has_its_own(installed, tmp_path):
    other = Key(tmp_path / "other")
    other.write("__init__.py")
    other.root = installed.root
    assert installed.ask("torch_key", "a") == "a" and installed.ask("triton_key", "b") == "b"
    assert other.ask("torch_key", "c") == "c" and installed.ask("torch_key") == "a" and other.ask("torch_key") == "c"


def place(installed):
    (found,) = (path for path in installed.root.rglob("*") if path.is_file())
    return found


def flipped(content):
    return content[:10] + bytes([content[10] ^ 1]) + content[11:]


@pytest.mark.parametrize("damage", [flipped, lambda content: content[:-1], lambda content: b""])
def test_record_that_does_not_verify_is_replaced(installed, damage):
    installed.ask()
    place(installed).write_bytes(damage(place(installed).read_bytes()))
    assert [installed.ask(), installed.ask()] == ["value 2", "value 2"]


def test_record_of_a_key_that_is_not_trusted_is_replaced(installed, settings, tmp_path):
    installed.ask()
    settings(XDG_CONFIG_HOME=tmp_path / "of another")
    keyring.renew()
    assert [installed.ask(), installed.ask()] == ["value 2", "value 2"]


def test_process_that_cannot_seal_reads_the_record_and_makes_none(installed, monkeypatch):
    ring = keyring.current()
    without = SimpleNamespace(find=ring.find, signing=None)
    with monkeypatch.context() as patch:
        patch.setattr(keyring, "current", lambda: without)
        assert [installed.ask(), installed.ask()] == ["value 1", "value 2"] and not installed.root.exists()
    assert installed.ask() == "value 3"
    monkeypatch.setattr(keyring, "current", lambda: without)
    assert installed.ask() == "value 3"


def test_record_of_another_key_in_its_place_is_not_taken(installed):
    installed.ask("torch_key", "a")
    record = place(installed).read_bytes()
    installed.ask("triton_key", "b")
    (other,) = (path for path in installed.root.rglob("*") if path.is_file() and path.read_bytes() != record)
    other.write_bytes(record)
    assert installed.ask("triton_key", "c") == "c"


def test_cache_that_cannot_be_written_costs_nothing_but_time(installed):
    installed.root.write_text("in the way")
    assert [installed.ask(), installed.ask()] == ["value 1", "value 2"]


def test_installation_that_cannot_be_looked_through_is_hashed_each_time(installed, tmp_path):
    installed.top = tmp_path / "archive.zip"
    assert [installed.ask(), installed.ask()] == ["value 1", "value 2"] and not installed.root.exists()


def test_what_computing_raises_is_raised(installed):
    def fail(value):
        raise FileNotFoundError("a file of torch")

    installed._compute = fail
    with pytest.raises(FileNotFoundError, match="file of torch"):
        installed.ask()
    assert not installed.root.exists()
