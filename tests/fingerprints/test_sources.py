"""The files that code consists of: what is among them, and what is not."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from safecache import session
from safecache.fingerprints import functions, sources

FILES = {
    "__init__": "",
    "ops": "from . import helpers\nimport numpy, json\ndef call():\n    from .later import late\n    return helpers.help() + late()\n",
    "helpers": "from .constants import N\ndef help():\n    return N\n",
    "constants": "N = 1\n",
    "later": "def late():\n    return 1\n",
    "unrelated": "from . import ops\n",
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of several modules, all of them imported."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "numpy", type(sys)("numpy"))
    (tmp_path / "of_sources").mkdir()
    for name, text in FILES.items():
        (tmp_path / "of_sources" / f"{name}.py").write_text(text)
    for name in FILES:
        importlib.import_module(f"of_sources.{name}")
    yield tmp_path / "of_sources"
    for name in [each for each in sys.modules if each.partition(".")[0] == "of_sources"]:
        del sys.modules[name]
    session.reset()


def test_files_are_those_of_all_that_is_imported_anywhere(package):
    found = sources.digest_reachable(["of_sources.ops"])
    names = ("ops", "helpers", "constants", "later")
    assert found.keys() == {"of_sources", *(f"of_sources.{name}" for name in names)}
    assert all(found[name] == sources.digest_file(name) for name in found)


def test_an_edit_is_another_digest_and_what_is_gone_has_none(package):
    before = sources.digest_file("of_sources.constants")
    (package / "constants.py").write_text("N = 2\n")
    assert sources.digest_file("of_sources.constants") not in ("", before)
    (package / "constants.py").unlink()
    assert sources.digest_file("of_sources.constants") == "" == sources.digest_file("no_such_module_anywhere")


def test_an_empty_file_has_a_digest(package):
    """Something may be written into it."""
    before = sources.digest_file("of_sources")
    (package / "__init__.py").write_text("import sys\n")
    assert sources.digest_file("of_sources") not in ("", before) and before


def test_a_module_that_is_not_imported_yet_has_its_digest(package):
    before = sources.digest_file("of_sources.later")
    del sys.modules["of_sources.later"]
    assert sources.digest_file("of_sources.later") == before and "of_sources.later" not in sys.modules


def test_a_file_that_does_not_parse_any_more_is_another(package):
    (package / "ops.py").write_text("def broken(:\n")
    assert sources.digest_reachable(["of_sources.ops"]).keys() == {"of_sources.ops"}


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Installs a vLLM, of which nothing else is known, in a version with these lines in its record."""
    monkeypatch.syspath_prepend(tmp_path)
    for name in [each for each in sys.modules if each.partition(".")[0] == "vllm"]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("")
    (tmp_path / "vllm" / "ops.py").write_text("def fake(x):\n    return x\n")
    information = tmp_path / "vllm-1.dist-info"
    information.mkdir()

    def install(version, *lines):
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
        (information / "RECORD").write_text("\n".join(lines))
        session.reset()

    yield install
    for name in [each for each in sys.modules if each.partition(".")[0] == "vllm"]:
        del sys.modules[name]
    session.reset()


LINES = ("vllm/__init__.py,sha256=a,0", "vllm/ops.py,sha256=b,0")


def test_an_installed_server_is_one_row(server):
    server("1", *LINES)
    looked = functions.look_into([importlib.import_module("vllm.ops").fake])
    assert looked == ("", {"vllm"}) and sources.digest_reachable(looked.modules).keys() == {"vllm"}
    before = sources.digest_file("vllm")
    server("1", *reversed(LINES), "vllm/__pycache__/ops.cpython-312.pyc,,", "../../bin/vllm,sha256=c,0")
    assert sources.digest_file("vllm") == before, "another installer"
    server("1", LINES[0], "vllm/ops.py,sha256=c,0")
    assert sources.digest_file("vllm") != before
    server("2", *LINES)
    assert sources.digest_file("vllm") != before


def test_a_server_that_runs_from_its_sources_is_one_row_of_its_files(server, tmp_path):
    """As SGLang's images have it: what it has registered before safecache was imported is not refused for ever."""
    server("1", "__editable__.vllm.pth,sha256=a,0")
    looked = functions.look_into([importlib.import_module("vllm.ops").fake])
    assert looked == ("", {"vllm"}) and sources.digest_reachable(looked.modules).keys() == {"vllm"}
    before = sources.digest_file("vllm")
    for name in ("vllm.ops", "vllm"):
        del sys.modules[name]
    server("1", "__editable__.vllm.pth,sha256=a,0")
    assert sources.digest_file("vllm") == before != "", "not imported"
    (tmp_path / "vllm" / "__pycache__" / "later.pyc").parent.mkdir(exist_ok=True)
    (tmp_path / "vllm" / "__pycache__" / "later.pyc").write_bytes(b"bytecode")
    session.reset()
    assert sources.digest_file("vllm") == before
    for change in ({"ops.py": "def fake(x):\n    return x + 1\n"}, {"new.py": ""}, {"_C.abi3.so": "library"}):
        for name, text in change.items():
            (tmp_path / "vllm" / name).write_text(text)
        session.reset()
        assert sources.digest_file("vllm") != before, change
        before = sources.digest_file("vllm")


def test_a_package_of_a_servers_name_that_is_none_has_no_row(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sgl_kernel", None)
    session.reset()
    assert sources.find_server("sgl_kernel.ops") == ""
    session.reset()


def test_library_that_can_register_an_op_is_told_by_its_symbols(tmp_path):
    torch = Path(importlib.util.find_spec("torch").origin).parent / "lib"
    assert sources._can_register(str(torch / "libtorch_python.so"))
    assert not sources._can_register(str(torch / "libshm.so"))
    library = tmp_path / "library.so"
    header = (torch / "libtorch_python.so").read_bytes()[:64]
    for content in (b"", b"no library", header, header + bytes(100), header[:20]):
        library.write_bytes(content)
        assert sources._can_register(str(library)), "what cannot be told is searched whole"


def test_class_whose_module_is_no_name_is_looked_into():
    """As those of some extensions are."""
    odd = type("Odd", (), {"__module__": property(lambda self: "odd")})
    assert not isinstance(odd.__module__, str) and not sources.is_upstream(odd.__module__)
    assert functions.look_into([odd, odd()]) is not None


def test_what_is_imported_later_is_found_later(package):
    """As by a function that imports it when it is first called."""
    late = sys.modules.pop("of_sources.later")
    assert "of_sources.later" not in sources.digest_reachable(["of_sources.ops"])
    sys.modules["of_sources.later"] = late
    assert "of_sources.later" in sources.digest_reachable(["of_sources.ops"])


def test_a_module_of_a_package_that_is_not_imported_has_its_digest(package):
    """A hit imports nothing of what only a compile needs."""
    before = sources.digest_file("of_sources.later")
    for name in [each for each in sys.modules if each.partition(".")[0] == "of_sources"]:
        del sys.modules[name]
    assert sources.digest_file("of_sources.later") == before != ""
    assert not [each for each in sys.modules if each.partition(".")[0] == "of_sources"]
