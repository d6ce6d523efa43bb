"""Every place in the source of torch and Triton that runs bytes, or makes objects of them: found by an AST scan.

What comes of each is in safecache.sinks: a hook that verifies it, or why it needs none. Here it is only found.
"""

from __future__ import annotations

import ast
import builtins
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

__all__ = ["Sink", "scan", "scan_source"]

# What may touch a cache, a temporary directory or an artifact of torch.compile, relative to site-packages.
_PLACES = (
    "torch/_inductor",
    "torch/_dynamo",
    "torch/_functorch",
    "torch/_export",
    "torch/_precompile.py",
    "torch/_precompile_driver.py",
    "torch/_vendor",
    "torch/compiler",
    "torch/export",
    "torch/fx/_graph_pickler.py",
    "torch/utils/_triton.py",
    "torch/utils/cpp_extension.py",
    "triton/_C",
    "triton/backends",
    "triton/compiler",
    "triton/runtime",
)
# And these files of Triton itself: _compile_warmup_pool.py, _utils.py and whatever comes.
_TRITON_FILES = re.compile(r"_\w+\.py")

_BUILTINS = frozenset({"exec", "eval", "compile", "__import__"})
_FUNCTIONS = frozenset(
    {
        *(f"{module}.load" for module in ("pickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "numpy")),
        *(f"runpy.{name}" for name in ("run_path", "run_module")),
        *(f"subprocess.{name}" for name in ("run", "call", "check_call", "check_output", "Popen", "getoutput")),
        *(f"os.{name}" for name in ("system", "popen", "execv", "execve", "execvp", "execl", "execlp", "posix_spawn")),
        *(f"sys.path.{name}" for name in ("append", "insert", "extend")),
        "asyncio.create_subprocess_exec",
        "asyncio.create_subprocess_shell",
        "importlib.util.spec_from_file_location",
        "importlib.machinery.SourceFileLoader",
        "importlib.machinery.ExtensionFileLoader",
        "shelve.open",
        "torch.load",
        "torch.jit.load",
        "torch.package.PackageImporter",
    }
)
# Wherever the object comes from that has them.
_METHODS = re.compile(
    r"(LoadLibrary|load_library|load_module|exec_module|_load_kernel|load_binary|load_cubin|"
    r"CDLL|PyDLL|AOTIModel(PackageLoader|ContainerRunner)\w*|_pickle_load_obj|loads|Unpickler|dlopen|"
    r"\w*[mM]odule_?[lL]oad(_?[dD]ata)?(Ex)?)"
)
# JSON is parsed; the others are what a kernel loads from memory.
_HARMLESS = re.compile(r"json\.loads|self\.loads|.*\b(value|source)\.loads")
# Whoever asks for one of these may find something there that it runs later, or has C++ run.
_CACHES = re.compile(r"[\w.]+\.(default_cache_dir|cache_dir|get_cache_manager)|[A-Z_]*(CACHE|EXTENSIONS)_DIR")
# In generated code: C++ and Python.
_TEXTS = re.compile(
    r"\b(\w*ModuleLoad\w*|zeModuleCreate|dlopen|load[A-Z]?\w*Kernel|pickle\.loads?|exec|eval|load_library|CDLL)\s*\("
)


class Sink(NamedTuple):
    """``what`` is called or handed on, how many ``times``, in this ``function`` of this ``module`` (a path)."""

    module: str
    function: str
    what: str
    times: int


def scan(packages: str, distribution: str) -> list[Sink]:
    """The sinks of torch, or of triton, in this site-packages directory, sorted. Raises OSError and SyntaxError."""
    return sorted(sink for path in _sources(packages, distribution) for sink in _of_file(packages, path))


def _of_file(packages: str, path: str) -> list[Sink]:
    with open(os.path.join(packages, path), encoding="utf-8") as file:
        return scan_source(file.read(), path)


def _sources(packages: str, distribution: str) -> Iterator[str]:
    files = (
        [f"triton/{name}" for name in os.listdir(os.path.join(packages, "triton")) if _TRITON_FILES.fullmatch(name)]
        if distribution == "triton"
        else []
    )
    for place in (*_PLACES, *files):
        if not place.startswith(f"{distribution}/"):
            continue
        if place.endswith(".py"):
            if os.path.exists(os.path.join(packages, place)):
                yield place
            continue
        for directory, _, names in os.walk(os.path.join(packages, place)):
            yield from (
                os.path.relpath(os.path.join(directory, name), packages) for name in names if name.endswith(".py")
            )


def scan_source(source: str, path: str) -> list[Sink]:
    """The sinks of one module. Raises SyntaxError."""
    tree = ast.parse(source, path)
    visitor = _Visitor(_bound(tree), _imported(tree))
    visitor.visit(tree)
    return [Sink(path, function, what, times) for (function, what), times in visitor.found.items()]


def _imported(tree: ast.AST) -> dict[str, str]:
    """What each name stands for that the module imports anywhere."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update({alias.asname: alias.name for alias in node.names if alias.asname})
        elif isinstance(node, ast.ImportFrom):
            prefix = "." * node.level + (node.module or "")
            names.update({alias.asname or alias.name: f"{prefix}.{alias.name}" for alias in node.names})
    return names


def _bound(tree: ast.Module) -> frozenset[str]:
    """The builtins that are something else in this module."""
    bound = {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    return frozenset(bound & _BUILTINS)


class _Visitor(ast.NodeVisitor):
    """Collects what is looked up, called or not: ``partial(pickle.loads, …)`` and a base class are sinks too."""

    def __init__(self, bound: frozenset[str], imported: Mapping[str, str]) -> None:
        self.found: Counter[tuple[str, str]] = Counter()
        self._bound = bound
        self._imported = imported
        self._scope: list[str] = []

    def _enter(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        for decorator in node.decorator_list:
            self.visit(decorator)
        self._scope.append(node.name)
        bases = [*node.bases, *node.keywords] if isinstance(node, ast.ClassDef) else [node.args]
        for child in [*bases, *node.body]:
            self.visit(child)
        self._scope.pop()

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _enter

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring
            self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_arg(self, node: ast.arg) -> None:
        """Passed over: a type that is annotated is not used."""

    def visit_Name(self, node: ast.Name) -> None:
        self._look(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if not self._look(node):
            self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            for text in _TEXTS.findall(node.value):
                self._add(f'"{text}("')
            if _CACHES.fullmatch(node.value):
                self._add(f'"{node.value}"')

    def _look(self, node: ast.Name | ast.Attribute) -> bool:
        name = self._name(node)
        is_sink = name is not None and isinstance(node.ctx, ast.Load) and self._is_sink(name)
        if is_sink:
            self._add(str(name))
        return is_sink

    def _is_sink(self, name: str) -> bool:
        if name in _BUILTINS:
            return name not in self._bound and hasattr(builtins, name)
        if name in _FUNCTIONS:
            return True
        if "." not in name or _HARMLESS.fullmatch(name):
            return False
        is_cache = _CACHES.fullmatch(name) is not None and not name.startswith("self.")
        return is_cache or _METHODS.fullmatch(name.rpartition(".")[2]) is not None

    def _name(self, node: ast.expr) -> str | None:
        """The dotted name, with what the module imports in place of what it calls that."""
        if isinstance(node, ast.Name):
            return self._imported.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            return f"{self._name(node.value) or '…'}.{node.attr}"
        return None

    def _add(self, what: str) -> None:
        self.found[".".join(self._scope) or "<module>", what] += 1
