"""Sinks: every place in the source of torch and Triton that runs bytes or deserialises them; with their verdicts.

The places are found by a scan of the syntax trees. For each, sinks.txt beside this module has the hook that verifies
what is run there, or the reason why none is needed.
"""

from __future__ import annotations

import ast
import builtins
import importlib.util
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from safecache.patching import hook as hooks

__all__ = [
    "DISTRIBUTIONS",
    "Listed",
    "Sink",
    "Verdict",
    "find_differences",
    "find_newest",
    "list_sinks",
    "parse_release",
    "read_table",
    "scan",
    "scan_installed",
    "scan_source",
]

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
# And these files of Triton itself: _compile_warmup_pool.py, _utils.py and any that are added later.
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
# Methods, of whatever object.
_METHODS = re.compile(
    r"(LoadLibrary|load_library|load_module|exec_module|_load_kernel|load_binary|load_cubin|"
    r"CDLL|PyDLL|AOTIModel(PackageLoader|ContainerRunner)\w*|_pickle_load_obj|loads|Unpickler|dlopen|"
    r"\w*[mM]odule_?[lL]oad(_?[dD]ata)?(Ex)?)"
)
# json.loads only parses; the others are the memory loads of a kernel.
_HARMLESS = re.compile(r"json\.loads|self\.loads|.*\b(value|source)\.loads")
# Code that uses one of these may find files there that it, or C++, runs later.
_CACHES = re.compile(r"[\w.]+\.(default_cache_dir|cache_dir|get_cache_manager)|[A-Z_]*(CACHE|EXTENSIONS)_DIR")
# Calls in generated code, C++ and Python.
_TEXTS = re.compile(
    r"\b(\w*ModuleLoad\w*|zeModuleCreate|dlopen|load[A-Z]?\w*Kernel|pickle\.loads?|exec|eval|load_library|CDLL)\s*\("
)


class Sink(NamedTuple):
    """Use of ``what``, called or passed on so many ``times`` in a ``function`` (dotted) of a ``module`` (path)."""

    module: str
    function: str
    what: str
    times: int


def scan(packages: str, distribution: str) -> list[Sink]:
    """Return the sinks of torch, or of triton, in the site-packages directory ``packages``, sorted.

    ``distribution``: "torch" or "triton". Raises OSError and SyntaxError.
    """
    return sorted(sink for path in _iter_sources(packages, distribution) for sink in _scan_file(packages, path))


def _scan_file(packages: str, path: str) -> list[Sink]:
    with open(os.path.join(packages, path), encoding="utf-8") as file:
        return scan_source(file.read(), path)


def _iter_sources(packages: str, distribution: str) -> Iterator[str]:
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
    """Return the sinks of one module; ``path`` is its name. Raises SyntaxError."""
    tree = ast.parse(source, path)
    visitor = _Visitor(_find_bound(tree), _find_imported(tree))
    visitor.visit(tree)
    return [Sink(path, function, what, times) for (function, what), times in visitor.found.items()]


def _find_imported(tree: ast.AST) -> dict[str, str]:
    """Return the qualified name of each name that the module imports, anywhere in it."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update({alias.asname: alias.name for alias in node.names if alias.asname})
        elif isinstance(node, ast.ImportFrom):
            prefix = "." * node.level + (node.module or "")
            names.update({alias.asname or alias.name: f"{prefix}.{alias.name}" for alias in node.names})
    return names


def _find_bound(tree: ast.Module) -> frozenset[str]:
    """Return the builtins that this module redefines."""
    bound = {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    return frozenset(bound & _BUILTINS)


class _Visitor(ast.NodeVisitor):
    """Collector of every use of a sink, called or not: ``partial(pickle.loads, …)`` and a base class are sinks too."""

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
        """Skip the annotation: a type in it is not used."""

    def visit_Name(self, node: ast.Name) -> None:
        self._check_node(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if not self._check_node(node):
            self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            for text in _TEXTS.findall(node.value):
                self._add(f'"{text}("')
            if _CACHES.fullmatch(node.value):
                self._add(f'"{node.value}"')

    def _check_node(self, node: ast.Name | ast.Attribute) -> bool:
        name = self._resolve_name(node)
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

    def _resolve_name(self, node: ast.expr) -> str | None:
        """Return the dotted name, with the aliases of the module's imports resolved; None for other expressions."""
        if isinstance(node, ast.Name):
            return self._imported.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            return f"{self._resolve_name(node.value) or '…'}.{node.attr}"
        return None

    def _add(self, what: str) -> None:
        self.found[".".join(self._scope) or "<module>", what] += 1


DISTRIBUTIONS = ("torch", "triton")
_TABLE = os.path.join(os.path.dirname(__file__), "sinks.txt")
_ROW = re.compile(r"  (\S+) (\S+) (\S+?)(?:\*(\d+))?(?: (\d+\.\d+)(?:-(\d+\.\d+))?)?")
_FIRST = {"torch": hooks.TORCH_FROM, "triton": hooks.TRITON_FROM}
_LAST = {"torch": hooks.TORCH_UNTIL, "triton": hooks.TRITON_UNTIL}


class Verdict(NamedTuple):
    """Verdict on a sink: the ``hooks`` that verify what is read there, or the ``reason`` why none is needed.

    ``open``: verification is needed and missing; ``reason`` says what is missing.
    """

    hooks: tuple[str, ...]
    reason: str
    open: bool


class Listed(NamedTuple):
    """Row of the table; ``since``, ``until``: the first and the last release that have the sink."""

    sink: Sink
    verdict: Verdict
    since: tuple[int, int]
    until: tuple[int, int]


@cache
def read_table() -> tuple[Listed, ...]:
    """Return all rows of sinks.txt. Raises ValueError for a malformed line, and OSError."""
    with open(_TABLE, encoding="utf-8") as file:
        return tuple(_parse_lines(line.rstrip("\n") for line in file))


def _parse_lines(lines: Iterable[str]) -> Iterator[Listed]:
    verdict = None
    for line in lines:
        if not line or line.startswith("#"):
            continue
        found = _ROW.fullmatch(line)
        if found is None:
            verdict = _parse_verdict(line)
        elif verdict is None:
            raise ValueError(f"no verdict stands above {line!r}")
        else:
            yield _parse_row(found, verdict)


def _parse_verdict(line: str) -> Verdict:
    word, _, rest = line.partition(" ")
    if word == "hook":
        return Verdict(tuple(rest.split()), "", False)
    if word in ("none", "open") and rest:
        return Verdict((), rest, word == "open")
    raise ValueError(f"neither a row nor a verdict: {line!r}")


def _parse_row(found: re.Match[str], verdict: Verdict) -> Listed:
    module, function, what, times, since, until = found.groups()
    distribution = module.partition("/")[0]
    first = parse_release(since) if since else _FIRST[distribution]
    last = parse_release(until or since) if since else find_newest(distribution)
    return Listed(Sink(module, function, what, int(times or 1)), verdict, first, last)


def parse_release(version: str) -> tuple[int, int]:
    """Return the major and minor number of ``version``; (0, 0), for which nothing is listed, if there are none."""
    digits = re.match(r"(\d+)\.(\d+)", version)
    return (int(digits[1]), int(digits[2])) if digits else (0, 0)


def find_newest(distribution: str) -> tuple[int, int]:
    """Return the last release of torch or triton that is listed."""
    major, minor = _LAST[distribution]
    return major, minor - 1


def list_sinks(distribution: str, release: tuple[int, int]) -> dict[Sink, Verdict]:
    """Return the sinks of this ``release`` of torch or triton, with their verdicts. Raises ValueError and OSError."""
    return {
        row.sink: row.verdict
        for row in read_table()
        if row.sink.module.startswith(f"{distribution}/") and row.since <= release <= row.until
    }


def scan_installed(distribution: str) -> list[Sink] | None:
    """Return the sinks of the installed torch or triton, or None if it is not installed. Imports neither.

    ``distribution``: "torch" or "triton". Raises OSError and SyntaxError.
    """
    spec = importlib.util.find_spec(distribution)
    if spec is None or not spec.submodule_search_locations:
        return None
    return scan(os.path.dirname(spec.submodule_search_locations[0]), distribution)


def find_differences(found: Sequence[Sink], known: Iterable[Sink]) -> tuple[list[Sink], list[Sink]]:
    """Return the sinks that are found but not known, and those that are known but not found, sorted."""
    unknown, vanished = set(found).difference(known), set(known).difference(found)
    return sorted(unknown), sorted(vanished)
