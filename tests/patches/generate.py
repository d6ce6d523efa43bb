"""Makes the patches verified-loads of an installed torch and Triton: python tests/patches/generate.py [SITE_PACKAGES]."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path

from safecache.patching.targets import TARGETS, VERIFYING, Target

NAME = "verified-loads"
PATCHES = Path(__file__).parents[2] / "patches"
# Releases that differ in none of the files that are touched, as was seen in their wheels.
_ALIKE = ("torch 2.12.0, 2.12.1", "torch 2.14.0, 2.14.1", "triton 3.7.0, 3.7.1")
SAME = {
    f"{named.split()[0]} {release}": named for named in _ALIKE for release in named.split(maxsplit=1)[1].split(", ")
}
_HEAD = """\
verified-loads: nothing from a cache is unpickled, executed or loaded before safecache has verified it

Where safecache is installed, its hooks that seal and verify are on without an import of it. Where it is not, this
changes nothing.

Release: {release}
---
"""
_BLOCK = """\

try:
    from safecache_entry import hook as _safecache
except ImportError:

    def _safecache(name):
        return lambda original: original

"""


def installed() -> Path:
    """The directory that this Python imports torch from."""
    spec = PathFinder.find_spec("torch")
    assert spec is not None and spec.origin is not None, "torch is not installed"
    return Path(spec.origin).parents[1]


def releases(site: Path) -> dict[str, str]:
    """By package; triton is not there with a torch for the CPU alone."""
    files = {"torch": site / "torch" / "version.py", "triton": site / "triton" / "__init__.py"}
    found = {package: path.read_text() for package, path in files.items() if path.exists()}
    return {package: re.search(r"__version__ = '([0-9.]+)", text)[1] for package, text in found.items()}


def path_of(package: str, release: str) -> Path:
    return PATCHES / f"{package}-{'.'.join(release.split('.')[:2])}" / f"{NAME}.patch"


def generate(site: Path, package: str, release: str) -> str:
    """The text of the patch of this package."""
    with tempfile.TemporaryDirectory() as scratch:
        return "".join(_parts(site, package, release, Path(scratch)))


def _parts(site: Path, package: str, release: str, scratch: Path) -> Iterator[str]:
    named = f"{package} {release}"
    yield _HEAD.format(release=SAME.get(named, named))
    for module, targets in sorted(_targets(package, releases(site)["torch"]).items()):
        path = f"{module.replace('.', '/')}.py"
        if not (site / path).exists():
            path = f"{module.replace('.', '/')}/__init__.py"
        source = (site / path).read_text(encoding="utf-8")
        for side, text in (("a", source), ("b", patched(source, targets))):
            (scratch / side / path).parent.mkdir(parents=True, exist_ok=True)
            (scratch / side / path).write_text(text, encoding="utf-8")
        command = ["git", "diff", "--no-index", "--no-prefix", "-U0", "--full-index", f"a/{path}", f"b/{path}"]
        diff = subprocess.run(command, cwd=scratch, text=True, capture_output=True).stdout
        assert diff, path
        # Git puts a line of the source behind the numbers.
        yield re.sub(r"(?m)^(@@ \S+ \S+ @@).*$", r"\1", diff)


def _targets(package: str, torch: str) -> dict[str, list[Target]]:
    """Those whose hooks seal or verify, by module."""
    release = tuple(map(int, torch.split(".")[:2]))
    found: dict[str, list[Target]] = {}
    for target in TARGETS:
        if target.hook in VERIFYING and target.module.partition(".")[0] == package and not target.is_not_for(release):
            found.setdefault(target.module, []).append(target)
    return found


def patched(source: str, targets: list[Target]) -> str:
    """The module with a decorator before each def, and, behind its imports, what a name that it imports is put to."""
    body = ast.parse(source).body
    definitions = [node for node in body if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))]
    first = definitions[0].lineno if definitions else len(source)
    end = max(
        node.end_lineno for node in body if isinstance(node, (ast.Import, ast.ImportFrom)) and node.lineno < first
    )
    block = _BLOCK
    insertions = {}
    for target in targets:
        node = _definition(body, target.attribute.split("."))
        if node is None:
            _check_imported(body, target.attribute, end)
            block += f'{target.attribute} = _safecache("{target.hook}")({target.attribute})\n'
        else:
            line = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            insertions[line - 1] = f'{" " * node.col_offset}@_safecache("{target.hook}")\n'
    lines = source.splitlines(keepends=True)
    # A blank line follows the imports already.
    insertions[end] = block.rstrip("\n") + "\n"
    for at in sorted(insertions, reverse=True):
        assert at >= end, "a definition before the end of the imports"
        lines.insert(at, insertions[at])
    return "".join(lines)


def _definition(body: list[ast.stmt], names: list[str]) -> ast.FunctionDef | None:
    """The def of this name, None where there is none; one of several, behind an if, would be a mistake."""
    found = [node for node in body if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == names[0]]
    if not found:
        assert len(names) == 1, names
        return None
    (node,) = found
    if len(names) == 1:
        assert isinstance(node, ast.FunctionDef), names
        return node
    definition = _definition(node.body, names[1:])
    assert definition is not None, names
    return definition


def _check_imported(body: list[ast.stmt], name: str, end: int) -> None:
    imports = [node for node in body if isinstance(node, (ast.Import, ast.ImportFrom)) and node.end_lineno <= end]
    assert any((alias.asname or alias.name) == name for node in imports for alias in node.names), name


def main(site: Path) -> None:
    for package, release in releases(site).items():
        path = path_of(package, release)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(generate(site, package, release), encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else installed())
