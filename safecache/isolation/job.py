"""Worker's part of one compile: rebuild what the parent has encoded, and compile it with a separate cache."""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from types import CellType, CodeType, FunctionType
from typing import Any

# Triton imports these late: here that happens before the fork, instead of in each worker again.
import triton.compiler.code_generator
import triton.language.extra.cuda.libdevice  # noqa: F401
from triton import knobs
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget, Language
from triton.compiler import compiler
from triton.runtime import cache
from triton.runtime.driver import driver

from safecache.isolation import encoding, protocol
from safecache.isolation.values import Decoder, find_class

__all__ = ["Rebuilt", "rebuild_source", "run"]

_KINDS = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
    inspect.Parameter.KEYWORD_ONLY,
    inspect.Parameter.VAR_KEYWORD,
)
_get_cache_key = compiler.get_cache_key
_make_backend = compiler.make_backend


def run(job: dict[str, Any], directory: str) -> dict[str, Any]:
    """Compile; the kernel's files are then in one folder of ``directory``, as a group of Triton's cache.

    ``job``: {"source": encoding.encode(…), "target": [backend, arch, warp size], "key": what get_cache_key() gave,
    "triton_key": what triton_key() gave, "backend_key": what the backend's hash() gave}. Replies {"key": the hash that
    this process computes for the kernel, "folder", "metadata": the file names, "times": of the stages, in µs, and
    protocol.catch_remarks()}, or {"error": {"type", "message", "stage": what it made}}. The files state the parent's
    cache key even if ours differs, which means that something was not sent. Anything else ends the process.
    """
    compile = _Compile(job, directory)
    with protocol.catch_remarks() as heard:
        try:
            reply = compile.run()
        except Exception as error:
            kind = type(error)
            name = f"{kind.__module__}.{kind.__qualname__}"
            reply = {"error": {"type": name, "message": str(error), "stage": compile.stage}}
    return reply | heard


class _Compile:
    def __init__(self, job: dict[str, Any], directory: str) -> None:
        self.job = job
        self.encoded: dict[str, Any] = job["source"]
        self.directory = directory
        self.stage = "source"
        self.own_key = ""
        self.times: dict[str, Any] = {}

    def run(self) -> dict[str, Any]:
        # Set up Triton for this job only; the next one sets all of it again.
        encoding.apply_knobs(self.encoded["knobs"])
        own = {"dir": self.directory, "manager_class": cache.FileCacheManager, "remote_manager_class": None}
        vars(knobs.cache).update(own)
        vars(knobs.compilation).update(listener=self._listen, always_compile=True)
        driver.set_active(_Driver(self.encoded["driver"]))
        # Hashing libtriton again would take as long as several compiles.
        cache.triton_key = lambda: self.job["triton_key"]
        compiler.get_cache_key = self._make_key
        compiler.make_backend = self._prepare_backend
        source = rebuild_source(self.encoded, self.directory)
        kernel = compiler.compile(source, target=GPUTarget(*self.job["target"]))
        (metadata,) = (path for name, path in kernel.metadata_group.items() if name.endswith(".json"))
        folder, name = os.path.split(metadata)
        if self.encoded["kind"] == "lowered":
            Path(folder, f"{name.removesuffix('.json')}.source").write_text(self.encoded["text"], encoding="utf-8")
        key = hashlib.sha256(self.own_key.encode()).hexdigest()
        return {"key": key, "folder": os.path.basename(folder), "metadata": name, "times": self.times}

    def _make_key(self, *rest: Any, **named: Any) -> str:
        self.own_key = _get_cache_key(*rest, **named)
        return str(self.job["key"])

    def _prepare_backend(self, target: Any) -> Any:
        backend = _make_backend(target)
        options = encoding.rebuild_options(backend, Decoder(_refuse_kernel).decode(self.encoded["options"]))
        backend.parse_options = lambda _: options
        # It holds the version of ptxas, which Triton caches, though torch 2.11 may set TRITON_PTXAS_PATH later.
        backend.hash = lambda: self.job["backend_key"]
        add_stages = backend.add_stages

        def add_watched(stages: dict[str, Any], *rest: Any) -> None:
            add_stages(stages, *rest)
            stages.update({name: self._watch_stage(name, make) for name, make in stages.items()})

        backend.add_stages = add_watched
        return backend

    def _watch_stage(self, stage: str, make: Callable[..., Any]) -> Callable[..., Any]:
        def make_watched(*rest: Any) -> Any:
            self.stage = stage
            Path(self.directory, protocol.STAGE_FILE).write_text(stage)
            return make(*rest)

        return make_watched

    def _listen(self, *, times: Any, **_: Any) -> None:
        self.times = dict(vars(times))


class _UnknownDriverError(Exception):
    """The kernel queries something that the parent could not provide."""


class _Driver:
    """Answers the queries of kernels while they are compiled; there is no GPU here."""

    def __init__(self, target: list[Any] | None) -> None:
        self._target = target

    def get_current_target(self) -> GPUTarget:
        if self._target is None:
            raise _UnknownDriverError("which GPU is the current one is not known in a worker")
        return GPUTarget(*self._target)

    def __getattr__(self, name: str) -> Any:
        raise _UnknownDriverError(f"{name} of the driver is not known in a worker")


def _refuse_kernel(_: int) -> Any:
    raise ValueError("an option is a kernel")


class Rebuilt:
    """The kernels that encoding.Kernels has encoded, rebuilt in another process."""

    def __init__(self, encoded: dict[str, Any]) -> None:
        self.decoder = Decoder(self.get_kernel)
        self._records = encoded["functions"]
        self._kernels: dict[int, Any] = {}
        self._scopes: list[dict[str, Any]] = [{} for _ in encoded["scopes"]]
        for number in range(len(self._records)):
            self.get_kernel(number)
        for scope, values in zip(self._scopes, encoded["scopes"], strict=True):
            scope.update((name, self.decoder.decode(value)) for name, value in values.items())
        for number, record in enumerate(self._records):
            function = self._kernels[number].fn
            for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
                cell.cell_contents = self.decoder.decode(record["free"][name])

    def get_kernel(self, number: int = 0) -> Any:
        if number not in self._kernels:
            self._kernels[number] = self._build_kernel(self._records[number])
        return self._kernels[number]

    def _build_kernel(self, record: dict[str, Any]) -> Any:
        lines = ["\n"] * record["offset"] + [f"{record['indent']}def {record['name']}(): ...\n"]
        settings = {name: self.decoder.decode(value) for name, value in record["settings"].items()}
        # Triton reads these lines instead of the file, which may have changed. A worker has one thread.
        stock = inspect.getsourcelines
        inspect.getsourcelines = lambda object: (lines, record["line"])  # noqa: ARG005
        try:
            kernel = find_class(record["language"])(self._make_function(record), **settings)
        finally:
            inspect.getsourcelines = stock
        # Triton calls this unsafe once a kernel has been hashed; this one has not been.
        kernel._unsafe_update_src(record["source"])
        kernel.hash = record["hash"]
        return kernel

    def _make_function(self, record: dict[str, Any]) -> FunctionType:
        """The function that Triton reads names from but never runs: its body is not the kernel's."""
        code = _make_code(tuple(record["free"]))
        code = code.replace(co_name=record["name"], co_filename=record["file"], co_firstlineno=record["line"])
        cells = tuple(CellType() for _ in code.co_freevars)
        function = FunctionType(code, self._scopes[record["scope"]], record["name"], None, cells)
        function.__module__, function.__qualname__ = record["module"], record["qualname"]
        parameters = [self._make_parameter(*parameter) for parameter in record["parameters"]]
        function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return function

    def _make_parameter(self, name: str, kind: int, annotation: str, *default: Any) -> inspect.Parameter:
        empty = inspect.Parameter.empty
        given = self.decoder.decode(default[0]) if default else empty
        return inspect.Parameter(name, _KINDS[kind], default=given, annotation=annotation or empty)


@functools.cache
def _make_code(free: tuple[str, ...]) -> CodeType:
    """The code of a function with these free variables."""
    names = ", ".join(free)
    outer = compile(f"def outer({names}):\n def inner(): return ({names})\n", "<kernel>", "exec").co_consts[0]
    return next(constant for constant in outer.co_consts if isinstance(constant, CodeType))


def rebuild_source(encoded: dict[str, Any], directory: str) -> Any:
    """The source for triton.compile(); its file, if any, is put into ``directory``. Raises OSError or ValueError."""
    if encoded["kind"] == "lowered":
        return _Lowered(encoded, directory)
    if encoded["kind"] == "ir":
        # By its own path, which the locations in the IR refer to.
        if Path(encoded["path"]).read_text() != encoded["text"]:
            raise ValueError(f"{encoded['path']} has changed since it was read")
        return encoded["path"]
    rebuilt = Rebuilt(encoded)
    kernel = rebuilt.get_kernel()
    if encoded["symbol"] is not None:
        kernel._repr = lambda _: encoded["symbol"]
    signature, constants, attributes = (
        rebuilt.decoder.decode(encoded[n]) for n in ("signature", "constants", "attributes")
    )
    source = find_class(encoded["language"], is_source=True)(kernel, signature, constants, attributes)
    source.name = encoded["name"]
    return source


class _Lowered(compiler.ASTSource):  # type: ignore[misc]
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
