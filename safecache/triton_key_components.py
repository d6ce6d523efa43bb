"""The parts of a Triton cache key as a person would name them.

Source: ``get_cache_key`` in triton/runtime/cache.py, ``ASTSource.hash`` in triton/compiler/compiler.py, ``cache_key``
in triton/runtime/jit.py. The same in Triton 3.6 to 3.9.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from safecache import key_text
from safecache.key_records import Component, plain
from safecache.torch_key_components import source_lines

__all__ = ["KERNEL", "OPTIONS", "SOURCE_LINE", "components", "name_of"]

KERNEL, OPTIONS, SOURCE_LINE = "kernel with what it calls", "options", "kernel source line"
# What Inductor writes is called after a hash of itself.
_GENERATED = re.compile(r"c[a-z2-7]{51}")


def name_of(source: Any) -> str:
    """What the kernel is called, wherever it is compiled and whatever it is specialized to."""
    kernel = getattr(source, "fn", None)
    if kernel is None:
        return str(source.name)
    module = str(getattr(kernel, "__module__", ""))
    name = getattr(kernel, "__qualname__", source.name)
    generated = _GENERATED.fullmatch(module.rpartition(".")[2]) or module.startswith("torch._inductor")
    return f"inductor.{name}" if generated else f"{module}.{name}"


def components(
    source: Any, backend: Any, options: Any, variables: Mapping[str, Any], triton_key: str, version: str
) -> tuple[Component, ...]:
    """The parts of the key that ``triton.compile`` has computed of these."""
    found = [Component("triton", key_text.digest(triton_key), f"{version} (files {triton_key[:6]})")]
    target = backend.target
    found.append(plain("target", f"{target.backend} {target.arch}"))
    found.append(plain("ptxas" if target.backend == "cuda" else "backend", str(backend.hash())))
    found += _of_kernel(source) if getattr(source, "fn", None) is not None else source_lines(SOURCE_LINE, source.src)
    found += [plain(f"option {name}", str(value)) for name, value in sorted(vars(options).items())]
    found.append(Component(OPTIONS, key_text.digest(options.hash()), ""))
    for name, value in sorted(variables.items()):
        found.append(Component(f"env {name}", key_text.digest(str(value)), key_text.variable(name, str(value))))
    return tuple(found)


def _of_kernel(source: Any) -> Iterator[Component]:
    kernel = source.fn
    yield Component(KERNEL, key_text.digest(str(kernel.cache_key)), "")
    yield from source_lines(SOURCE_LINE, kernel.src)
    yield plain("first line of the kernel in its file", str(getattr(kernel, "starting_line_number", "")))
    for (name, _), (value, _) in getattr(kernel, "used_global_vals", {}).items():
        yield plain(f"global {name}", _text(value))
    for name in _called(kernel):
        called = kernel.__globals__[name]
        yield Component(f"source of {name}, which it calls", key_text.digest(str(called.cache_key)), "")
    for argument, kind in source.signature.items():
        yield plain(f"type of argument {argument}", str(kind))
    for path, value in source.constants.items():
        yield Component(f"constexpr {_argument(kernel, path)}", key_text.digest(_text(value)), _shown(value))
    for path, attributes in source.attrs.items():
        yield plain(f"attributes of argument {_argument(kernel, path)}", str(attributes))


def _called(kernel: Any) -> list[str]:
    """Those of the kernel's globals that are functions of Triton's too."""
    scope = kernel.__globals__
    names = getattr(getattr(kernel.fn, "__code__", None), "co_names", ())
    return sorted({name for name in names if isinstance(getattr(scope.get(name), "cache_key", None), str)})


def _argument(kernel: Any, path: tuple[int, ...]) -> str:
    first, *rest = path
    return ".".join([kernel.arg_names[first], *map(str, rest)])


def _text(value: Any) -> str:
    """As Triton has it in the key."""
    return str(getattr(value, "cache_key", value))


def _shown(value: Any) -> str:
    return key_text.capped(str(getattr(value, "__name__", value)))
