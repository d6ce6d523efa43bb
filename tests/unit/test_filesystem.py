"""The store reaches the file system through one module alone, where tests can have each call fail."""

from __future__ import annotations

import ast
import inspect
import re

import pytest

from safecache import durability, files, quarantine, store, temporaries

# What only joins or cuts strings, and constants.
PURE = {
    "strerror",
    "path.join",
    "path.dirname",
    "path.basename",
    "path.split",
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
    "module", [store, temporaries, files, durability, quarantine], ids=lambda module: module.__name__.split(".")[1]
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
