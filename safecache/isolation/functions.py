"""How a kernel is sent to a worker, as its source with the globals that it uses, and rebuilt there."""

from __future__ import annotations

import inspect
import os
import re
from functools import cache
from pathlib import Path
from types import CellType, CodeType, FunctionType
from typing import Any

from triton import knobs
from triton._C.libtriton import ir
from triton.backends.compiler import Language
from triton.compiler.compiler import ASTSource

from safecache.isolation.values import (
    Decoder,
    Encoder,
    UnshippableError,
    UnshippableKernelError,
    Use,
    kernel_class,
    language_of,
    source_class,
    used,
)

__all__ = ["Kernels", "Rebuilt", "rebuild"]

_SETTINGS = ("version", "do_not_specialize", "do_not_specialize_on_alignment", "debug", "noinline")
_KINDS = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
    inspect.Parameter.KEYWORD_ONLY,
    inspect.Parameter.VAR_KEYWORD,
)
_DEF = re.compile(r"^(?P<indent>[ \t]*)def\s+\w+\s*\(")


class Kernels:
    """A kernel with all that it uses, to be encoded. ``encoder`` encodes further values that may refer to kernels."""

    def __init__(self, kernel: Any) -> None:
        self.encoder = Encoder(self._number, lenient=not knobs.compilation.allow_non_constexpr_globals)
        self._kernels: list[Any] = []
        self._records: list[dict[str, Any]] = []
        self._scopes: dict[int, dict[str, Any]] = {}
        self._number(kernel)

    def encoded(self) -> dict[str, Any]:
        order = {address: rank for rank, address in enumerate(self._scopes)}
        functions = [record | {"scope": order[record["scope"]]} for record in self._records]
        return {"functions": functions, "scopes": list(self._scopes.values())}

    def _number(self, kernel: Any) -> int:
        for number, known in enumerate(self._kernels):
            if known is kernel:
                return number
        # Registered before what it uses, since that may use it in turn.
        self._kernels.append(kernel)
        self._records.append({})
        number = len(self._records) - 1
        try:
            self._records[number] = self._record(kernel)
        except UnshippableError as error:
            raise UnshippableKernelError(str(error)) from None
        return number

    def _record(self, kernel: Any) -> dict[str, Any]:
        language = language_of(kernel)
        if language is None:
            raise UnshippableError(f"{kernel!r} is of a class of its own, {type(kernel).__qualname__}")
        if kernel.fn is None or kernel.__globals__ is None:
            raise UnshippableError(f"the kernel {kernel.__name__} has been stripped of its function")
        # What Triton reads from the source with decorators: how many lines stand before the def, and its indentation.
        lines = kernel.raw_src
        offset = next((number for number, line in enumerate(lines) if line.strip().startswith("def ")), 0)
        defined = next(filter(None, map(_DEF.match, lines)), None)
        return {
            "language": language,
            "source": kernel.src,
            # Up to Triton 3.8 it depends on what this process has hashed before, so the worker must not compute it.
            "hash": kernel.hash,
            "file": kernel.fn.__code__.co_filename,
            "line": kernel.starting_line_number,
            "offset": offset,
            "indent": defined["indent"] if defined else "",
            "name": kernel.__name__,
            "qualname": kernel.__qualname__,
            "module": kernel.__module__,
            "parameters": [self._parameter(kernel, parameter) for parameter in kernel.params],
            "settings": {name: self.encoder.encode(getattr(kernel, name)) for name in _SETTINGS},
            "free": self._free(kernel),
            "scope": self._scope(kernel),
        }

    def _parameter(self, kernel: Any, parameter: Any) -> list[Any]:
        declared = kernel.signature.parameters[parameter.name]
        record = [parameter.name, int(declared.kind), parameter.annotation]
        return [*record, self.encoder.encode(declared.default)] if parameter.has_default else record

    def _free(self, kernel: Any) -> dict[str, Any]:
        names = used(kernel.src)
        free = inspect.getclosurevars(kernel.fn).nonlocals if kernel.fn.__closure__ else {}
        return {
            name: self._encode(free[name], names[name], kernel, name) for name in sorted(free.keys() & names.keys())
        }

    def _scope(self, kernel: Any) -> int:
        values = kernel.__globals__
        scope = self._scopes.setdefault(id(values), {})
        free = kernel.fn.__code__.co_freevars
        for name, use in used(kernel.src).items():
            if name in values and name not in free:
                encoded = self._encode(values[name], use, kernel, name)
                scope[name] = _joined(scope[name], encoded) if name in scope else encoded
        return id(values)

    def _encode(self, value: Any, use: Use, kernel: Any, name: str) -> Any:
        return self.encoder.encode_used(value, use, f"{name} in {kernel.__name__}")


def _joined(one: Any, other: Any) -> Any:
    """The encoded parts that two kernels use of the same global, joined."""
    if one == {"absent": None}:
        return other
    if other == {"absent": None} or not isinstance(one, dict) or "namespace" not in one:
        return one
    name, parts = one["namespace"]
    _, further = other["namespace"]
    for part, value in further.items():
        parts[part] = _joined(parts[part], value) if part in parts else value
    return {"namespace": [name, parts]}


class Rebuilt:
    """The kernels that ``Kernels`` has encoded, rebuilt in another process."""

    def __init__(self, encoded: dict[str, Any]) -> None:
        self.decoder = Decoder(self.kernel)
        self._records = encoded["functions"]
        self._kernels: dict[int, Any] = {}
        self._scopes: list[dict[str, Any]] = [{} for _ in encoded["scopes"]]
        for number in range(len(self._records)):
            self.kernel(number)
        for scope, values in zip(self._scopes, encoded["scopes"], strict=True):
            scope.update((name, self.decoder.decode(value)) for name, value in values.items())
        for number, record in enumerate(self._records):
            function = self._kernels[number].fn
            for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
                cell.cell_contents = self.decoder.decode(record["free"][name])

    def kernel(self, number: int = 0) -> Any:
        if number not in self._kernels:
            self._kernels[number] = self._build(self._records[number])
        return self._kernels[number]

    def _build(self, record: dict[str, Any]) -> Any:
        lines = ["\n"] * record["offset"] + [f"{record['indent']}def {record['name']}(): ...\n"]
        settings = {name: self.decoder.decode(value) for name, value in record["settings"].items()}
        # Triton reads these lines instead of the file, which may have changed. A worker has one thread.
        stock = inspect.getsourcelines
        inspect.getsourcelines = lambda object: (lines, record["line"])  # noqa: ARG005
        try:
            kernel = kernel_class(record["language"])(self._function(record), **settings)
        finally:
            inspect.getsourcelines = stock
        # Triton calls this unsafe once a kernel has been hashed; this one has not been.
        kernel._unsafe_update_src(record["source"])
        kernel.hash = record["hash"]
        return kernel

    def _function(self, record: dict[str, Any]) -> FunctionType:
        """The function that Triton reads names from but never runs: its body is not the kernel's."""
        code = _code(tuple(record["free"]))
        code = code.replace(co_name=record["name"], co_filename=record["file"], co_firstlineno=record["line"])
        cells = tuple(CellType() for _ in code.co_freevars)
        function = FunctionType(code, self._scopes[record["scope"]], record["name"], None, cells)
        function.__module__, function.__qualname__ = record["module"], record["qualname"]
        parameters = [self._parameter(*parameter) for parameter in record["parameters"]]
        function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return function

    def _parameter(self, name: str, kind: int, annotation: str, *default: Any) -> inspect.Parameter:
        empty = inspect.Parameter.empty
        given = self.decoder.decode(default[0]) if default else empty
        return inspect.Parameter(name, _KINDS[kind], default=given, annotation=annotation or empty)


@cache
def _code(free: tuple[str, ...]) -> CodeType:
    """The code of a function with these free variables."""
    names = ", ".join(free)
    outer = compile(f"def outer({names}):\n def inner(): return ({names})\n", "<kernel>", "exec").co_consts[0]
    return next(constant for constant in outer.co_consts if isinstance(constant, CodeType))


def rebuild(encoded: dict[str, Any], directory: str) -> Any:
    """The source for triton.compile(); its file, if any, is put into ``directory``. Raises OSError or ValueError."""
    if encoded["kind"] == "lowered":
        return _Lowered(encoded, directory)
    if encoded["kind"] == "ir":
        # By its own path, which the locations in the IR refer to.
        if Path(encoded["path"]).read_text() != encoded["text"]:
            raise ValueError(f"{encoded['path']} has changed since it was read")
        return encoded["path"]
    rebuilt = Rebuilt(encoded)
    kernel = rebuilt.kernel()
    if encoded["symbol"] is not None:
        kernel._repr = lambda _: encoded["symbol"]
    signature, constants, attributes = (
        rebuilt.decoder.decode(encoded[n]) for n in ("signature", "constants", "attributes")
    )
    source = source_class(encoded["language"])(kernel, signature, constants, attributes)
    source.name = encoded["name"]
    return source


class _Lowered(ASTSource):  # type: ignore[misc]
    """The IR that the parent's front end has made, from which Triton continues."""

    def __init__(self, encoded: dict[str, Any], directory: str) -> None:
        self.name, self.ext, self._hash = encoded["name"], encoded["ext"], encoded["hash"]
        self.language = Language[encoded["language"].upper()]
        self._path = os.path.join(directory, "front-end.mlir")
        Path(self._path).write_text(encoded["text"], encoding="utf-8")

    def hash(self) -> str:
        return str(self._hash)

    def make_ir(self, _target: Any, _options: Any, _implementation: Any, _modules: Any, context: Any) -> Any:
        module = ir.parse_mlir_module(self._path, context)
        module.context = context
        return module

    def parse_options(self) -> dict[str, Any]:
        return {}
