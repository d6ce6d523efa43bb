"""The store reaches the file system through one module alone, where tests can have each call fail.

And nothing below a cache is changed but from an open directory: see folders.
"""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

import safecache
from safecache.fs import folders, opening, temporaries
from safecache.store import entry_files, quarantine

# What only joins or cuts strings, and constants.
PURE = {
    "strerror",
    "path.join",
    "path.dirname",
    "path.basename",
    "path.split",
    "path.normpath",
    "path.relpath",
    "pardir",
    "geteuid",
    "fsencode",
    "fsdecode",
    "sep",
    "curdir",
    "stat_result",
}
CONSTANT = re.compile(r"O_[A-Z]+|LOCK_[A-Z]+")
WITH_CALLS = {"os", "fcntl", "shutil", "tempfile", "pathlib", "io", "mmap", "glob"}


def used(tree):
    """Names such as ``os.path.join``, and those of built-in functions that open files."""
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and id(node) not in inner and isinstance(root_of(node), ast.Name):
            yield ast.unparse(node)
        elif isinstance(node, ast.Name) and node.id == "open":
            yield "open"


def root_of(node):
    while isinstance(node, ast.Attribute):
        node = node.value
    return node


@pytest.mark.parametrize(
    "module",
    [entry_files, temporaries, opening, quarantine, folders],
    ids=lambda module: module.__name__.rpartition(".")[2],
)
def test_module_calls_the_file_system_through_the_seam_alone(module):
    tree = ast.parse(inspect.getsource(module))
    imported = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
        if isinstance(node, ast.Import) or node.module in WITH_CALLS
    }
    assert imported & WITH_CALLS <= {"os", "fcntl"}
    found = set()
    for name in used(tree):
        package, _, rest = name.partition(".")
        if name == "open" or (package in WITH_CALLS and rest not in PURE and not CONSTANT.fullmatch(rest)):
            found.add(name)
    assert found == set()


PACKAGE = Path(safecache.__file__).parent
# What changes names or content by a path, without an open directory.
CHANGING = {"unlink", "remove", "rename", "renames", "replace", "rmdir", "removedirs", "link", "symlink", "mkdir"}
CHANGING |= {"makedirs", "truncate", "utime", "chmod", "chown", "mkfifo", "mknod", "rmtree", "move", "copytree"}
CHANGING |= {"copy", "copy2", "copyfile", "copymode"}
NEW = re.compile(r"O_WRONLY|O_RDWR|O_CREAT|_CREATE|_NEW\b")
# By module, what it changes by path, which lies below no cache.
ELSEWHERE = {
    "cli/demo.py": "a cache of its own",
    "cli/main.py": "/dev/null",
    "tiers/directory_faults.py": "a cache's root itself",
    "history/__init__.py": "a cache's root itself",
    "integrations/tilelang.py": "a cache's root itself",
    "doctor/directories.py": "what it tries in a directory of its own, through that directory's descriptor",
    "doctor/installation.py": "a temporary directory",
    "built_code/exec_directory.py": "the directory for code on other mounts",
    "fs/opening.py": "a copy in a private directory, or beside a package",
    "built_code/device_kernels.py": "a private directory",
    "built_code/extension_builds.py": "a private directory",
    "isolation/crashes.py": "a private directory",
    "isolation/server.py": "/dev/null; a private directory, and its own entry of /proc",
    "launchers/kernel_recipe.py": "memory",
    "signing/key_directory.py": "keys",
    "signing/key_files.py": "keys",
    "signing/keyring.py": "keys",
    "tiers/levels.py": "a local tier's root itself",
    "metrics/__init__.py": "the metrics' directory",
    "built_code/packages.py": "packages, at the paths that their users give",
    "built_code/library_builds.py": "a private directory",
    "fs/private_directory.py": "memory, and private directories",
    "crash_guard/strikes.py": "the user's own place for them",
    "crash_guard/markers.py": "the user's own place for those of a cache that cannot be written",
    "upkeep/oci.py": "an image and its pack, in a private directory of this process",
    "store/entry_files.py": "what lies above a cache, or outside: a root that is made",
    "testing/__init__.py": "what a test damages",
    "built_code/triton_files.py": "dumps for people, where their setting says",
}


def changed_by_path(tree):
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        package, _, name = ast.unparse(call.func).rpartition(".")
        text = ast.unparse(call)
        if package in ("os", "shutil", "filesystem") and not {"dir_fd", "src_dir_fd"} & {
            each.arg for each in call.keywords
        }:
            if name in CHANGING or (name == "open" and NEW.search(text)):
                yield text
        elif (package, name) == ("", "open") and re.search(r"""['"][rb]*[wxa+][b+]*['"]""", text):
            yield text


def test_nothing_below_a_cache_is_changed_by_its_path():
    found = {
        str(path.relative_to(PACKAGE)): changes
        for path in PACKAGE.rglob("*.py")
        if (changes := list(changed_by_path(ast.parse(path.read_text()))))
    }
    assert {name: changes for name, changes in found.items() if name not in ELSEWHERE} == {}
    assert set(ELSEWHERE) == set(found), "said of what does not"


@pytest.mark.parametrize(
    "text",
    [
        *(
            "os.unlink(path)",
            "shutil.rmtree(path)",
            "filesystem.rename(a, b)",
            "open(path, 'wb')",
            "open(path, mode='a')",
        ),
        *("os.open(path, os.O_RDWR)", "filesystem.open(path, _CREATE, 0o666)", "os.utime(path, None)"),
    ],
)
def test_change_by_path_is_seen(text):
    assert list(changed_by_path(ast.parse(text))) and not list(changed_by_path(ast.parse("os.unlink(a, dir_fd=b)")))
