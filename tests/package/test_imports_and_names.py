"""The core knows neither torch nor the hooks, modules say what is public, one knows our paths, errors can be pickled."""

from __future__ import annotations

import ast
import functools
import inspect
import json
import pickle
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import python
from helpers.key_cases import PUBLIC

from safecache import errors
from safecache.places import metadata
from safecache.signing import key_files

PACKAGE = Path(__file__).parents[2] / "safecache"
# Rooms in which torch and Triton may be imported: by then they are.
OTHERS = {"bootstrap", "cli", "doctor", "integrations", "isolation"}
CORE = sorted(path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] not in OTHERS)
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if "bootstrap" not in path.parts)
# Beside the package: servers import it.
ENTRY = PACKAGE / "bootstrap" / "entry" / "safecache_entry.py"
MODULES.append(ENTRY)
# Here importing late is the point: activating must not import what is only needed once torch is, nor a hit what only a
# miss needs, nor a process what only a compile worker does, or one with a remote.
IMPORT_LATE = {"__init__", "_plugins", "activation", "extras", "features", "patching", "scopes", "tier"}


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)


class Import(NamedTuple):
    """An import statement, by the full name of what it imports."""

    name: str
    late: bool

    def is_below(self, *packages: str) -> bool:
        return any(f"{self.name}.".startswith(f"{package}.") for package in packages)


def imports(node: ast.AST, late: bool = False) -> list[Import]:
    if isinstance(node, ast.Import):
        return [Import(alias.name, late) for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, "a relative import"
        return [Import(f"{node.module}.{alias.name}", late) for alias in node.names]
    late = late or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
    return [found for child in ast.iter_child_nodes(node) for found in imports(child, late)]


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports_of_core(*packages: str) -> list[tuple[Path, Import]]:
    """Of these packages, with the modules of the core that import them."""
    return [(path, each) for path in CORE for each in imports(tree_of(path)) if each.is_below(*packages)]


def test_core_imports_neither_torch_nor_hooks():
    """Not even in a function, nor for the type checker; patching takes the hooks by name, from the table."""
    assert len(CORE) > 100 and imports_of_core("torch", "triton", "safecache.integrations") == []


def test_core_does_not_import_the_command_line():
    assert [path for path, _ in imports_of_core("safecache.cli") if path.stem != "__main__"] == []


def test_core_imports_our_modules_at_the_top():
    found = imports_of_core("safecache")
    assert found and [(path, i.name) for path, i in found if i.late and path.stem not in IMPORT_LATE] == []


def test_entry_imports_nothing_of_ours_and_the_package_nothing_of_it():
    """A server imports it that nobody has asked for safecache in; and a program may find the package where it is not."""
    assert [i.name for i in imports(tree_of(ENTRY)) if i.is_below("safecache", "wrapt") and not i.late] == []
    importers = {
        name_of(path) for path in MODULES if any(i.is_below("safecache_entry") for i in imports(tree_of(path)))
    }
    assert importers == set()


def test_importing_the_core_loads_neither_torch_nor_hooks():
    names = [name_of(path) for path in CORE if path.stem not in ("__main__", "__init__")]
    done = python(
        "import importlib, json, sys\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        "print(json.dumps(sorted(sys.modules)))\n"
    )
    assert done.returncode == 0, done.stderr
    loaded = json.loads(done.stdout)
    assert set(names) <= set(loaded)
    assert [name for name in loaded if Import(name, False).is_below("torch", "triton", "safecache.integrations")] == []


def test_importing_the_package_loads_no_cryptography():
    """An import must cost next to nothing in the processes that compile nothing."""
    done = python("import json, sys, safecache; print(json.dumps(sorted(sys.modules)))")
    heavy = {
        *("typing", "datetime"),
        "hashlib",
        "pickle",
        "filelock",
        "wrapt",
        "rich",
        "inspect",
        "safecache.signing.seal",
        "safecache.patching.patching",
    }
    heavy |= {"cryptography", "safecache.signing.keyring", "safecache.signing.keys"}
    assert done.returncode == 0, done.stderr
    assert heavy & set(json.loads(done.stdout)) == set()


def test_sealing_and_verifying_with_mac_keys_loads_no_cryptography(tmp_path):
    """Nor does a public key that lies in the keyring and has sealed nothing that is read."""
    ring = tmp_path / "safecache" / "keys"
    ring.mkdir(parents=True, mode=0o700)
    (ring / f"{PUBLIC.id.hex()}.json").write_bytes(key_files.encode(PUBLIC))
    code = (
        "import sys, safecache\n"
        "from safecache.signing import keyring, seal\n"
        "from safecache.reporting.kinds import Kind\n"
        "ring = keyring.current()\n"
        "content = seal.attach(b'', Kind.FX_ENTRY, 'k', ring.signing, {})\n"
        "assert seal.verify(content, Kind.FX_ENTRY, 'k', ring.find).reason is None\n"
        "print(len(ring.trusted), ring.problems, 'cryptography' in sys.modules)\n"
    )
    done = python(code, env={"XDG_CONFIG_HOME": str(tmp_path), "SAFECACHE": "0"})
    assert done.stdout == "2 () False\n", done.stderr


def bound_names(tree: ast.Module) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {alias.asname or alias.name for alias in node.names}
    return names


def public_names(tree: ast.Module) -> list[str] | None:
    for node in tree.body:
        if isinstance(node, ast.Assign) and [getattr(t, "id", "") for t in node.targets] == ["__all__"]:
            return ast.literal_eval(node.value)
    return None


def as_ruff_sorts(name: str) -> tuple[int, str]:
    """Constants, classes, then the rest."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


def is_script(path: Path) -> bool:
    return path.stem == "__main__" or 'if __name__ == "__main__":' in path.read_text(encoding="utf-8")


def test_every_module_names_what_is_public_sorted():
    for path in MODULES:
        tree = tree_of(path)
        public = public_names(tree)
        if is_script(path) or (path.stem == "__init__" and not tree.body[1:]):
            continue  # the latter says what lives in a package, and no more
        assert public is not None, f"no __all__ in {path}"
        assert public == sorted(set(public), key=as_ruff_sorts), path
        assert set(public) - bound_names(ast.Module(tree.body, [])) == set(), path


def test_every_module_says_what_it_is_for():
    assert [path for path in MODULES if not ast.get_docstring(tree_of(path))] == []


# What is a name below <cache>/.safecache, and in some packages a word of commands or checks as well.
WORDS = {metadata.CRASHES, metadata.JOURNAL, metadata.KEYS, metadata.QUARANTINE}
NAMES = {metadata.FOLDER, metadata.KNOWN_BAD, metadata.RECORDS, metadata.STAMP, metadata.TRASH}
SPEAKING = {"cli", "doctor", "reporting"}


def texts(tree: ast.Module) -> set[str]:
    """Of the module, but for what it says is public."""
    nodes = [node for node in tree.body if not (isinstance(node, ast.Assign) and "__all__" in ast.dump(node))]
    constants = (each.value for node in nodes for each in ast.walk(node) if isinstance(each, ast.Constant))
    return {text for text in constants if isinstance(text, str)}


def test_one_module_knows_what_lies_below_our_folder_in_a_cache():
    for path in MODULES:
        if path.stem == "metadata":
            continue
        forbidden = NAMES if SPEAKING.intersection(path.relative_to(PACKAGE.parent).parts) else NAMES | WORDS
        if path.stem == "key_directory":
            forbidden = NAMES  # the keyring has a directory "keys" too, in the user's configuration
        if path.stem == "settings":
            forbidden = forbidden - {metadata.FOLDER}  # the name of a pack ends so
        found = texts(tree_of(path))
        assert found & forbidden == set(), path
        assert [text for text in found if f"{metadata.FOLDER}/" in text] == [], path


def test_what_lies_below_our_folder_in_a_cache_is_where_it_was():
    """Entries and records of earlier versions are found there."""
    assert metadata.make_record_path("/c", "ab12") == "/c/.safecache/records/ab/ab12"
    assert [metadata.make_path("/c", name) for name in sorted(NAMES - {metadata.FOLDER} | WORDS)] == [
        *("/c/.safecache/crashes", "/c/.safecache/gc.stamp", "/c/.safecache/journal", "/c/.safecache/keys"),
        *("/c/.safecache/known_bad", "/c/.safecache/quarantine", "/c/.safecache/records", "/c/.safecache/trash"),
    ]


ERRORS = [error for _, error in inspect.getmembers(errors, inspect.isclass)]


def test_every_error_is_public_and_one_of_ours():
    assert {error.__name__ for error in ERRORS} == set(errors.__all__) - {"make_printable"}
    assert all(issubclass(error, errors.SafecacheError) for error in ERRORS)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
@pytest.mark.parametrize("protocol", [0, pickle.HIGHEST_PROTOCOL], ids="protocol-{}".format)
def test_error_survives_pickling_with_its_message(error, protocol):
    returned = pickle.loads(pickle.dumps(error("the message"), protocol))
    assert type(returned) is error and str(returned) == "the message"


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_error_is_none_that_torch_swallows(error):
    assert not issubclass(error, (OSError, pickle.PickleError, TypeError, AttributeError, AssertionError))
