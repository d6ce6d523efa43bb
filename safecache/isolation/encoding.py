"""What is to be compiled, in JSON: a kernel's source with all that it uses, its IR where that cannot travel, or IR.

With the options of its backend as they were parsed, and Triton's knobs as they are set in Python: what the environment
sets, the environment carries.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any, NamedTuple

from triton import knobs
from triton._C.libtriton import ir
from triton.compiler.compiler import IRSource, make_backend
from triton.runtime.driver import driver

from safecache.isolation import stock
from safecache.isolation.functions import Kernels
from safecache.isolation.languages import language_of
from safecache.isolation.values import Encoder, UnshippableError

__all__ = ["CannotTravel", "FrontEndError", "apply", "current", "encode", "hindrance_of_knobs", "rebuild"]


def rebuild(backend: Any, fields: dict[str, Any]) -> Any:
    """As ``backend.parse_options`` has made them, who would fill in what the environment of this process says."""
    # With a value for what Triton 3.9 warns about if it is not given.
    kind = type(backend.parse_options({"enable_fp_fusion": False}))
    options = object.__new__(kind)
    vars(options).update(fields)
    return options


# Of use only in the process that launches, or that holds the cache.
_OF_THE_PARENT = {
    "listener",
    "impl",
    "manager_class",
    "remote_manager_class",
    "jit_cache_hook",
    "jit_post_compile_hook",
}
_PLAIN = (bool, int, str)


def current() -> dict[str, dict[str, Any]]:
    """The values by group and knob."""
    return {group: _plain(values) for group, values in _groups().items()}


def hindrance_of_knobs() -> str | None:
    """The knob that keeps every compile in this process, in words; None if there is none."""
    if knobs.runtime.interpret:
        return "TRITON_INTERPRET has kernels interpreted"
    if knobs.compilation.use_ir_loc:
        return "USE_IR_LOC names files in the cache, which a worker does not have"
    if getattr(knobs.runtime, "add_stages_inspection_hook", None) is not None:
        return "triton.knobs.runtime.add_stages_inspection_hook changes the stages of a compile by a function of Python"
    for group, values in _groups().items():
        for name, value in vars(values).items():
            if value is not None and not isinstance(value, _PLAIN) and name not in _OF_THE_PARENT:
                return f"triton.knobs.{group}.{name} is set to a {type(value).__name__}"
    return None


def apply(values: dict[str, dict[str, Any]]) -> None:
    """Set these, and no others, in a worker."""
    for group, target in _groups().items():
        vars(target).clear()
        # Not by assignment, which sets variables of the environment.
        vars(target).update(values.get(group, {}))


def _groups() -> dict[str, Any]:
    return {name: value for name, value in vars(knobs).items() if isinstance(value, knobs.base_knobs)}


def _plain(group: Any) -> dict[str, Any]:
    # Some are read from the environment once, when Triton is imported; a worker's Triton can be older than ours.
    own = {**_read_at_import(type(group)), **vars(group)}
    return {name: value for name, value in own.items() if value is None or isinstance(value, _PLAIN)}


def _read_at_import(kind: type) -> dict[str, Any]:
    return {name: value for name, value in vars(kind).items() if isinstance(value, _PLAIN) and name[0] != "_"}


class CannotTravel(Exception):
    """This compile has to stay in this process. The text is the reason, a clause: "… is set to a function"."""


class FrontEndError(CannotTravel):
    """The front end, run here, has found fault with the kernel, and will do so again. The cause is what it raised."""


def encode(source: Any, target: Any, options: dict[str, Any]) -> dict[str, Any]:
    """What ``job.run`` needs of a compile; JSON-able. ``options``: the fields of what the backend has parsed.

    A kernel travels as its source. One that calls Python of the user's while it is compiled (constexpr functions,
    builtins, aggregates), or functions of Triton's that somebody has replaced, has its front end run here, and travels
    as what that makes; that part is not isolated. Raises CannotTravel, naming what cannot; where it is the kernel
    that is wrong, FrontEndError.
    """
    try:
        return _encoded(source, target, options)
    except CannotTravel:
        raise
    except UnshippableError as error:
        raise CannotTravel(str(error)) from None
    except Exception as error:
        # Such as a repr= of the user's raises: the compile in this process comes upon it too, or has no need of it.
        raise CannotTravel(f"to encode it raises {type(error).__name__}: {error}") from error


def _encoded(source: Any, target: Any, options: dict[str, Any]) -> dict[str, Any]:
    hindrance = hindrance_of_knobs()
    replaced = stock.replaced_in_backend(make_backend(target))
    if hindrance is not None or replaced is not None:
        raise CannotTravel(hindrance or f"{replaced} is not as Triton was released")
    return {
        **_source(source, target, options),
        "options": Encoder(_refuse).encode(options),
        "knobs": current(),
        "driver": _driver_target(),
    }


def _source(source: Any, target: Any, options: dict[str, Any]) -> dict[str, Any]:
    if isinstance(source, IRSource):
        return {"kind": "ir", "path": str(source.path), "text": source.src}
    if language_of(source) is None:
        raise UnshippableError(f"{type(source).__module__}.{type(source).__qualname__} is no source of Triton's")
    if stock.replaced_in_front_end() is None:
        with contextlib.suppress(UnshippableError, RecursionError):
            return _kernel(source)
    return _lowered(source, target, options)


def _kernel(source: Any) -> dict[str, Any]:
    kernels = Kernels(source.fn)
    encode = kernels.encoder.encode
    return {
        "kind": "kernel",
        "language": language_of(source),
        "name": source.name,
        "symbol": _symbol(source),
        "signature": encode(source.signature),
        "constants": encode(source.constants),
        "attributes": encode(source.attrs),
        **kernels.encoded(),
    }


def _symbol(source: Any) -> str | None:
    """What the kernel's own ``repr=`` calls this specialization; None without one."""
    kernel = source.fn
    if kernel._repr is None:
        return None
    constants = {kernel.arg_names[path[0]]: value for path, value in source.constants.items() if len(path) == 1}
    return str(kernel.repr(Specialization(constants, source.signature)))


class Specialization(NamedTuple):
    """What Triton gives to a ``repr=``."""

    constants: dict[str, Any]
    signature: dict[str, Any]


def _lowered(source: Any, target: Any, options: dict[str, Any]) -> dict[str, Any]:
    """As ``triton.compile`` begins, by what the front end makes. Raises FrontEndError."""
    try:
        backend = make_backend(target)
        parsed = rebuild(backend, options)
        context = ir.context()
        ir.load_dialects(context)
        backend.load_dialects(context)
        implementation = backend.get_codegen_implementation(parsed)
        module = source.make_ir(target, parsed, implementation, backend.get_module_map(), context)
    except Exception as error:
        raise FrontEndError(f"its front end fails with {type(error).__name__}") from error
    return {
        "kind": "lowered",
        "language": language_of(source),
        "name": source.name,
        "ext": source.ext,
        "text": str(module),
        "hash": source.hash(),
    }


def _driver_target() -> list[Any] | None:
    """The GPU of this process, for kernels that ask; None if to find out would initialise CUDA."""
    active = driver._active or driver._default
    cuda = sys.modules.get("torch.cuda")
    if active is None or (cuda is not None and not cuda.is_initialized()):
        return None
    target = active.get_current_target()
    return [target.backend, target.arch, target.warp_size]


def _refuse(kernel: Any) -> int:
    raise UnshippableError(f"an option is the kernel {kernel!r}")
