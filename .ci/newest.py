"""Looks at the newest releases of what is patched before users do: it downloads wheels, and installs none.

    python .ci/newest.py [--pip-options="--pre --index-url https://download.pytorch.org/whl/nightly/cpu"] [PACKAGE ...]

What each hook is on is looked for in their syntax trees, and each place that runs bytes in the table of sinks. A line
names each symbol that is gone or has another signature, and each sink that is new or gone; the exit code is then 1.
.ci/run calls this. Every night, as from cron, it belongs with --pip-options for torch's nightly wheels as well.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from safecache.patching import sinks
from safecache.patching.activation import list_hooks
from safecache.patching.hook import TORCH_UNTIL, Hook

PACKAGES = (
    *("torch", "triton", "vllm", "sglang"),
    *("quack", "flashinfer", "tvm_ffi", "cutlass", "tilelang", "deep_gemm"),
)
# Of those that are called otherwise.
_DISTRIBUTIONS = {
    "quack": "quack-kernels",
    "flashinfer": "flashinfer-python",
    "tvm_ffi": "apache-tvm-ffi",
    "deep_gemm": "sgl-deep-gemm",
    "cutlass": "nvidia-cutlass-dsl-libs-core",
}


def download(package: str, options: list[str], directory: Path) -> tuple[str, Path]:
    """The version of the newest wheel, and a directory with the Python modules in it. Raises CalledProcessError."""
    wheels = directory / f"{package}-wheel"
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", *options]
    subprocess.run([*command, "-d", str(wheels), _DISTRIBUTIONS.get(package, package)], check=True)
    (wheel,) = wheels.iterdir()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(directory / package, [name for name in archive.namelist() if name.endswith(".py")])
    wheel.unlink()
    outermost = min((directory / package).rglob(f"{package}/__init__.py"), key=lambda path: len(path.parts))
    return wheel.name.split("-")[1], outermost.parents[1]


class Sources:
    """The modules below the directories of several packages, as syntax trees."""

    def __init__(self, roots: list[Path]) -> None:
        self.roots = roots
        self.trees: dict[str, ast.Module | None] = {}

    def tree(self, module: str) -> ast.Module | None:
        if module not in self.trees:
            parts = Path(*module.split("."))
            places = [
                root / place for root in self.roots for place in (parts.with_suffix(".py"), parts / "__init__.py")
            ]
            found = next((place for place in places if place.is_file()), None)
            self.trees[module] = found and ast.parse(found.read_text(encoding="utf-8"))
        return self.trees[module]

    def find(self, module: str, name: str) -> tuple[str, ast.AST] | None:
        """The module that defines a name, and the definition, through imports."""
        tree = self.tree(module)
        for node in _statements(tree.body) if tree else ():
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name:
                return module, node
            if isinstance(node, (ast.ImportFrom, ast.Import)):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return self._imported(module, node, alias.name)
            if isinstance(node, (ast.Assign, ast.AnnAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if name in (getattr(target, "id", "") for target in targets):
                    return module, node
        return None

    def _imported(self, module: str, node: ast.ImportFrom | ast.Import, name: str) -> tuple[str, ast.AST] | None:
        if isinstance(node, ast.Import):
            return name, node
        package = module.split(".")
        if not self._is_package(module):
            package = package[:-1]
        base = package[: len(package) - node.level + 1] if node.level else []
        source = ".".join([*base, *filter(None, [node.module])])
        return self.find(source, name) or (f"{source}.{name}", node)

    def _is_package(self, module: str) -> bool:
        return any((root / Path(*module.split(".")) / "__init__.py").is_file() for root in self.roots)

    def method(self, module: str, kind: ast.ClassDef, name: str) -> ast.AST | None:
        """A method of a class, or of what it derives from."""
        for node in _statements(kind.body):
            if isinstance(node, ast.FunctionDef) and node.name == name:
                return node
        for base in kind.bases:
            found = self.find(module, getattr(base, "id", getattr(base, "attr", "")))
            if found and isinstance(found[1], ast.ClassDef):
                method = self.method(*found, name)
                if method is not None:
                    return method
        return None


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Those of a module or class, also below if and try; the last definition of a name counts."""
    for node in reversed(body):
        yield node
        for part in ("finalbody", "orelse", "body"):
            if isinstance(node, (ast.If, ast.Try, ast.With)):
                yield from _statements(getattr(node, part, []))


def signature(function: ast.FunctionDef) -> str:
    """As safecache.patching.hook has it."""
    given = function.args
    names = [each.arg for each in (*given.posonlyargs, *given.args)]
    count = len(names) - len(given.defaults)
    found = [name if place < count else f"{name}=" for place, name in enumerate(names)]
    found += [given.vararg.arg] if given.vararg else []
    for each, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        found.append(f"*{each.arg}" if default is None else f"*{each.arg}=")
    return ", ".join([*found, *([given.kwarg.arg] if given.kwarg else [])])


def objection(hook: Hook, sources: Sources) -> str:
    """Why a hook would stand down; "" if it would not."""
    if sources.tree(hook.module) is None:
        return "there is no such module"
    if hook.is_on_builtin:
        return "" if "open" in {getattr(node, "id", "") for node in ast.walk(sources.tree(hook.module))} else "not used"
    owner, _, method = hook.attribute.rpartition(".")
    found = sources.find(hook.module, owner or method)
    if found is None:
        return "not found"
    node = sources.method(found[0], found[1], method) if owner and isinstance(found[1], ast.ClassDef) else found[1]
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        said = f"<module {found[0]}>"
    elif isinstance(node, ast.FunctionDef):
        said = signature(node)
    else:
        return "not found" if node is None else ""  # what is assigned has no signature here
    return "" if said in hook.signatures else f"({said}), known are {' and '.join(map(repr, hook.signatures))}"


def problems(roots: dict[str, Path], versions: dict[str, str]) -> Iterator[str]:
    """What differs from what the hooks and the table of sinks know, in lines."""
    torch = sinks.parse_release(versions.get("torch", ""))
    sources = Sources(list(roots.values()))
    for unit, hook in list_hooks():
        package = hook.module.partition(".")[0]
        is_gone = torch >= TORCH_UNTIL > hook.until
        if package in roots and not hook.is_not_for(torch) and not is_gone:
            why = objection(hook, sources)
            if why:
                yield f"{package} {versions[package]}: {unit}: {hook.name}: {why}"
    for package in roots.keys() & set(sinks.DISTRIBUTIONS):
        known = sinks.list_sinks(package, min(sinks.parse_release(versions[package]), sinks.find_newest(package)))
        unknown, vanished = sinks.find_differences(sinks.scan(str(roots[package]), package), known)
        for words, found in (("new sink", unknown), ("sink is gone", vanished)):
            for sink in found:
                where = f"{sink.module}: {sink.function}: {sink.what} *{sink.times}"
                yield f"{package} {versions[package]}: {words}: {where}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pip-options", default="", help="for each download")
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help=f"by default {', '.join(PACKAGES)}")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        names = arguments.packages or PACKAGES
        found = {name: download(name, arguments.pip_options.split(), Path(directory)) for name in names}
        versions = {name: version for name, (version, _) in found.items()}
        lines = list(problems({name: root for name, (_, root) in found.items()}, versions))
    print(*(f"{name} {version}" for name, version in versions.items()), sep="\n")
    print(*lines or ["all hooks and sinks are as they are known"], sep="\n")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
