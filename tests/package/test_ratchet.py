"""What makes the package hard to carry on, counted: a number may fall, and then its limit falls; none may rise."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "safecache"
# Packages that a reader has to know first, and those that may then be left out.
CORE = {
    *(
        "built_code",
        "compiles",
        "entries",
        "errors",
        "fs",
        "integrations",
        "launchers",
        "load_errors",
        "patching",
        "places",
        "ports",
    ),
    *("reporting", "session", "settings", "signing", "store", "tiers"),
}
FEATURES = {
    *(
        "crash_guard",
        "explain",
        "fingerprints",
        "history",
        "isolation",
        "metrics",
        "packs",
        "remote",
        "single_flight",
        "upkeep",
    ),
    "recompile_check",
}
LIMITS = {
    "modules": 203,
    "lines": 43599,
    "imports of a feature in the core": 0,
    "places where the core uses a feature": 0,
    "thread-locals": 2,
    "mutable objects of modules": 9,
    "names that functions rebind": 9,
    "hooks at fork": 1,
    "hooks at exit": 2,
    "reset()": 2,
    "private functions with one caller": 487,
    "longest __all__": 32,
}
MUTABLE = {
    *(
        "Counter",
        "ForkLock",
        "Lock",
        "OrderedDict",
        "RLock",
        "WeakKeyDictionary",
        "WeakSet",
        "WeakValueDictionary",
        "bytearray",
    ),
    *("count", "defaultdict", "deque", "dict", "list", "set"),
}


@functools.cache
def modules():
    return [(path, ast.parse(path.read_text(encoding="utf-8"))) for path in sorted(PACKAGE.rglob("*.py"))]


@functools.cache
def nodes():
    return [(path, node) for path, tree in modules() for node in ast.walk(tree)]


def walk(kind):
    return ((path, node) for path, node in nodes() if isinstance(node, kind))


def dotted(node):
    """The last part of what is called, or is the base of a class: ``local`` for ``threading.local``."""
    return getattr(node, "attr", getattr(node, "id", ""))


def calls(name):
    return sum(dotted(node.func) == name for _, node in walk(ast.Call))


def package_of(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def is_mutable(value):
    if isinstance(value, ast.Call):
        return dotted(value.func) in MUTABLE
    return isinstance(value, (ast.Dict, ast.List, ast.Set, ast.DictComp, ast.ListComp, ast.SetComp))


def mutable_objects():
    """Of modules, by their names: constants are in capitals, or named ``_LIKE_THIS``."""
    for _, tree in modules():
        for node in tree.body:
            targets = getattr(node, "targets", [getattr(node, "target", None)])
            names = [each.id for each in targets if isinstance(each, ast.Name)]
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and is_mutable(node.value):
                yield from (name for name in names if not name.isupper() and not name.startswith("__"))


def imports():
    """From a module of the core to one of a feature, and the names by which the first knows it."""
    for path, tree in modules():
        if package_of(path) in CORE:
            for node in ast.walk(tree):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("safecache."):
                    feature = node.module.split(".")[1]
                    for alias in node.names:
                        if feature in FEATURES:
                            yield path, tree, node.module, alias


def sites():
    """Where the core uses what it has imported of a feature."""
    for _, tree, _, alias in imports():
        name = alias.asname or alias.name
        yield sum(isinstance(node, ast.Name) and node.id == name for node in ast.walk(tree))


def functions_with_one_caller():
    """Private functions of modules that are named once besides where they are defined."""
    for path, tree in modules():
        text = Counter(re.findall(r"\w+", path.read_text(encoding="utf-8")))
        names = (node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
        yield from (name for name in names if name.startswith("_") and text[name] == 2)


def public_names():
    for _, tree in modules():
        for node in tree.body:
            if isinstance(node, ast.Assign) and dotted(node.targets[0]) == "__all__":
                yield len(node.value.elts)


def length(iterable):
    return sum(1 for _ in iterable)


@functools.cache
def count():
    lines = [path.read_text(encoding="utf-8").count("\n") for path, _ in modules()]
    return {
        "modules": len(lines),
        "lines": sum(lines),
        "imports of a feature in the core": length(imports()),
        "places where the core uses a feature": sum(sites()),
        "thread-locals": sum("local" in map(dotted, node.bases) for _, node in walk(ast.ClassDef)) + calls("local"),
        "mutable objects of modules": length(mutable_objects()),
        "names that functions rebind": sum(len(node.names) for _, node in walk(ast.Global)),
        "hooks at fork": calls("register_at_fork"),
        "hooks at exit": length(
            node
            for _, node in walk((ast.Call, ast.FunctionDef))
            for each in getattr(node, "decorator_list", [getattr(node, "func", None)])
            if dotted(each) == "register" and dotted(getattr(each, "value", None)) == "atexit"
        ),
        "reset()": sum(node.name == "reset" for _, node in walk(ast.FunctionDef)),
        "private functions with one caller": length(functions_with_one_caller()),
        "longest __all__": max(public_names()),
    }


def test_no_number_rises():
    found = count()
    assert {name: number for name, number in found.items() if number > LIMITS[name]} == {}


def test_limits_fall_with_the_numbers():
    """Within two in a hundred, so that not each deleted line has to be counted."""
    found = count()
    assert {name: found[name] for name, limit in LIMITS.items() if found[name] < 0.98 * limit} == {}


def test_each_package_is_of_the_core_a_feature_or_a_tool():
    tools = {
        "__init__",
        "__main__",
        "_plugins",
        "_version",
        "bootstrap",
        "cli",
        "doctor",
        "features",
        "testing",
    }
    assert {package_of(path) for path, _ in modules()} == CORE | FEATURES | tools
