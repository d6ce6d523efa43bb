"""Explain why a lookup missed: record the parts of keys, and compare two keys.

A feature: it may import the core, and no other feature. Here the parts of torch's cache keys, and Triton's, are
collected where a lookup missed.

The parts of AOTAutograd and FX graph keys are parsed from torch's debug output for a key: ``debug_lines`` of
FxGraphCachePickler in torch/_inductor/codecache.py prints a line ``[digest] attribute[part]: text`` for each attribute
of FxGraphHashDetails (identical in torch 2.11 to 2.15). Triton's follow ``get_cache_key`` in triton/runtime/cache.py,
``ASTSource.hash`` in triton/compiler/compiler.py, and ``cache_key`` in triton/runtime/jit.py (identical in Triton 3.6
to 3.9).
"""

from __future__ import annotations

import ast
import functools
import logging
import os
import re
import secrets
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

from safecache import compiles, ports
from safecache.errors import CacheWriteError
from safecache.explain import key_records
from safecache.explain.key_records import Component, KeyRecord, make_component
from safecache.patching.hook import hook
from safecache.places.refs import Ref
from safecache.ports import Compiling, KernelRequest, Saved
from safecache.reporting import events
from safecache.reporting.kinds import Kind, Reason
from safecache.session import Part
from safecache.settings import config, units
from safecache.signing import provenance

__all__ = [
    "CHOSEN",
    "CONFIGS",
    "ENVIRONMENT",
    "GRAPH",
    "GRAPH_LINE",
    "INPUT",
    "KERNEL",
    "OPTIONS",
    "PLACE",
    "SOURCE_LINE",
    "contain_failures",
    "find_compile_seconds",
    "find_miss_reason",
    "get_hash",
    "list_chosen",
    "list_places",
    "make_triton_part",
    "make_variable_part",
    "note_compile",
    "note_miss",
    "parse_components",
    "parse_fields",
    "split_source",
]


# Inherited by what this process forks.
_PROCESS = secrets.token_hex(4)
# Records of this process, not of its parent, whose compiles are under way, or were never saved.
_waiting: Part[dict[tuple[Kind, str], KeyRecord]] = Part(dict)
_MOST_WAITING = 256

GRAPH, GRAPH_LINE, INPUT = "graph", "graph line", "example input"
_LINE = re.compile(r"\[(?P<digest>[^]]*)\] (?P<attribute>\w+)(?:\[(?P<part>.*?)\])?: (?P<text>.*)", re.DOTALL)
# By attribute. The rest of the name is the part: a dictionary key or a list index.
_NAMES = {
    "inductor_config": "inductor config",
    "inductor_config_comms": "inductor config comms.",
    "fx_kwargs": "argument of Inductor's",
    "example_inputs": INPUT,
    "user_defined_triton_source": "source of Triton kernel in the graph",
    "triton_kernel_source_codes": "source of Triton kernel in the graph's operators",
    "autograd_config": "functorch config",
    "aot_config": "arguments of AOTAutograd",
    "system_info": "system",
    "custom_backend_codegen_configs": "config of the custom backend for",
    "custom_backend_passes": "source of custom pass of a backend",
    "_custom_partitioner_fn": "source of the custom partitioner",
    "cpp_runtime_thread_count": "number of CPU threads",
    "default_cuda_device_index": "device index",
    "cache_key_tag": "cache_key_tag",
    "autocast_state": "autocast of",
    "disable_amp": "autocast",
    "grad_enabled": "grad mode",
}
_PASS = re.compile(r"_?(\w+_custom_(?:pre_|post_)?pass|fuse_ddp_communication_passes)")
# Fields of a tensor that are shown even at their usual value.
_ALWAYS = ("dtype", "shape", "stride", "device")
_USUAL = ("None", "False", "0", "torch.strided")
_MOST_LINES, _LONGEST_LINE = 1000, 160


@hook(
    "torch._functorch._aot_autograd.autograd_cache:AOTAutogradCachePickler.get_hash(self, obj)",
    why="A cache miss does not say which part of the key changed, since torch keeps no parts of earlier keys.",
    issue="https://github.com/pytorch/pytorch/issues/152065",
    since=(2, 12),
)
def get_hash(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> str:
    """AOTAutogradCachePickler.get_hash: collects the debug lines of a whole key, if a miss asks for them.

    Here alone the graph's names are as they are in the key.
    """
    wanted, compiles.current.key_lines = compiles.current.key_lines, None
    if wanted is not None:
        wanted += instance.debug_lines(*args, **kwargs)
    key: str = wrapped(*args, **kwargs)
    return key


def note_compile(compiling: Compiling) -> None:
    """Record the components of the key that missed, before its compile. Observer of Compiling."""
    ref, call = compiling.ref, compiles.current.key_call
    with contain_failures(ref.kind):
        if ref.kind is Kind.KERNEL:
            note_miss(ref, compiling.name(), _list_kernel_parts(compiling.graph))
        elif ref.kind is Kind.FX_ENTRY and ref.key:
            _note_torch_miss(ref, compiling.name(), compiling.lines, {})
        elif ref.kind is Kind.AOT_ENTRY and call is not None:
            compute, args, kwargs, (key, printed) = call
            lines = list(printed or ())
            if not lines:  # torch has not printed them: the key is computed once more
                with compiles.override_scope(key_lines=lines):
                    compute(*args, **kwargs)
            settings = sys.modules["torch._functorch.config"].save_config_portable(ignore_private_configs=False)
            _note_torch_miss(Ref(Kind.AOT_ENTRY, key), compiling.name(), lines, settings)


def _note_torch_miss(ref: Ref, name: str, lines: Sequence[str], functorch: dict[str, object]) -> None:
    parts = [*parse_components(lines, provenance.describe(), functorch, config.copy_environment())]
    # What no key has, and what says where its parts come from.
    unset = sys.modules["torch.utils._config_module"]._UNSET_SENTINEL
    for module, title in CONFIGS.items():
        if module in sys.modules:
            parts.append(list_chosen(title, sys.modules[module], unset))
    parts += list_places(os.path.dirname(str(sys.modules["torch"].__file__)))
    note_miss(ref._replace(root=sys.modules["torch._inductor.codecache"].cache_dir()), name, parts)


# Config modules, and what the names of their settings begin with among the parts of a key.
CONFIGS = {
    "torch._inductor.config": "inductor config ",
    "torch._inductor.config_comms": "inductor config comms.",
    "torch._functorch.config": "functorch config ",
}


def find_miss_reason(ref: Ref, name: str) -> Reason:
    """Return the Reason why the key of ``ref`` is absent; ``name``: of its graph or kernel."""
    return key_records.find_absence_reason(ref, name)


def find_compile_seconds(ref: Ref, name: str) -> float:
    """Return the seconds that the compile of this key took before its last save; 0 if unknown. Unverified."""
    record = key_records.recall(ref, name)
    return record.took if record is not None else 0.0


def note_miss(ref: Ref, name: str, parts: Iterable[Component]) -> None:
    """A lookup has missed, and a compile follows. With SAFECACHE_EXPLAIN=1, say why."""
    record = KeyRecord(ref.kind, ref.key, name, time.time(), tuple(parts), process=_PROCESS)
    waiting = _waiting.now
    while len(waiting) >= _MOST_WAITING:
        with suppress(KeyError, StopIteration):  # another thread has
            del waiting[next(iter(waiting))]
    waiting[ref.kind, ref.key] = record
    ports.observe(Saved, _remember_record)
    if config.current().explain:
        from safecache.explain import explanations

        events.log_line(
            logging.WARNING, f"safecache: miss of the {explanations.explain(record, ref.root, saved=False)}"
        )


def _remember_record(saved: Saved) -> None:
    record = _waiting.now.pop((saved.ref.kind, saved.ref.key), None)
    if record is not None:
        # The entry itself is in the cache. If there is no more room, the next save reports that.
        with suppress(OSError, CacheWriteError):
            key_records.remember(record, saved.ref.root)


@contextmanager
def contain_failures(kind: Kind) -> Iterator[None]:
    """Look into what torch or Triton have made, in this block; where that fails, say so, and go on without."""
    try:
        yield
    except Exception as error:
        events.report(
            Reason.NOT_EXPLAINED,
            f"did not record the key of a miss ({kind.word})",
            why=f"{type(error).__name__}: {error}",
            cause=f"{kind.word} {type(error).__name__}",
            remedy="safecache explain cannot explain this miss; the compile goes on.",
            error=error,
        )


def parse_components(
    lines: Iterable[str], versions: Mapping[str, str], functorch: Mapping[str, object], environ: Mapping[str, str]
) -> tuple[Component, ...]:
    """The parts of the torch cache key that has these debug lines.

    ``versions``: as returned by provenance.describe(). ``functorch``: its settings, which torch prints as a single
    part. ``environ``: the environment, which is not part of the key but shows where a setting came from.
    """
    found = [component for line in lines for component in _parse_line(line, versions)]
    found += [make_component(f"functorch config {name}", str(value)) for name, value in sorted(functorch.items())]
    found += [make_component(f"env {name}", value) for name, value in key_records.mask_environment(environ).items()]
    return tuple(found)


def _parse_line(line: str, versions: Mapping[str, str]) -> Iterator[Component]:
    match = _LINE.fullmatch(line)
    if match is None:
        return
    attribute, part, text = match["attribute"], match["part"] or "", match["text"]
    digest = key_records.digest(match["digest"])
    if attribute == "gm":
        yield Component(GRAPH, digest, "")
        yield from split_source(GRAPH_LINE, text)
    elif attribute == "torch_version":
        yield Component("torch", digest, f"{versions.get('torch', '')} (sources {digest[:6]})")
    elif attribute == "system_info":
        yield from _parse_system(part, digest, text, versions)
    elif attribute == "example_inputs":
        yield Component(f"{INPUT} {part}", digest, _describe_input(text))
    elif (custom := _PASS.fullmatch(attribute)) is not None:
        yield Component(f"source of custom pass {custom[1]}", digest, "none" if text == "None" else digest)
    elif attribute == "autograd_config":
        yield Component("functorch config", digest, "")
    else:
        name = _NAMES.get(attribute, attribute.strip("_").replace("_", " "))
        separator = "" if name.endswith(".") or not part else " "
        yield Component(f"{name}{separator}{part}", digest, key_records.cap_text(text))


def _parse_system(part: str, digest: str, text: str, versions: Mapping[str, str]) -> Iterator[Component]:
    """The versions and the device. The hash over them is skipped: it adds nothing."""
    try:
        stated = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        stated = text
    if part == "version" and isinstance(stated, dict):
        for name, version in stated.items():
            written = f"{versions.get('triton', '')} (files {str(version)[:6]})" if name == "triton" else str(version)
            yield Component(str(name), key_records.digest(str(version)), key_records.cap_text(written))
    elif part == "device" and isinstance(stated, dict):
        yield Component(
            "device",
            digest,
            key_records.cap_text(" ".join(filter(None, [str(stated.get("name")), versions.get("gpu")]))),
        )
    elif part != "hash":
        yield Component(f"system {part}", digest, key_records.cap_text(text))


# What is recorded beside the parts of a key, to tell where these come from: variables, settings that the program has
# chosen itself, whatever the environment says, and places that are part of the commands that build libraries.
ENVIRONMENT, CHOSEN, PLACE = "env ", "chosen ", "place of "


def list_chosen(title: str, settings: Any, unset: object) -> Component:
    """Return which of torch's ``settings``, a config module, the program has set. ``unset``: torch's word for none."""
    names = []
    for name, entry in settings._config.items():
        own = entry.user_override
        own = own.get() if isinstance(own, ContextVar) else own  # a plain value up to 2.14
        # Torch copies a list or a dictionary there when it is read.
        if own is not unset and not (isinstance(own, (list, dict, set)) and own == entry.default):
            names.append(name)
    found = " ".join(sorted(names))
    return Component(f"{CHOSEN}{title}", key_records.digest(found), found)


def list_places(torch: str) -> Iterator[Component]:
    """Yield the paths of ``torch``, a directory, and of Python's headers. A path below the home directory is masked."""
    home = os.path.join(os.path.expanduser("~"), "")
    for what, path in (("torch", torch), ("Python's headers", sysconfig.get_paths()["include"])):
        text = "(not shown)" if path.startswith(home) else key_records.cap_text(path)
        yield Component(f"{PLACE}{what}", key_records.digest(path), text)


# The configurations of an autotuned kernel have the same lines.
_digest_of_line = functools.lru_cache(maxsize=1024)(key_records.digest)


def split_source(name: str, text: str) -> Iterator[Component]:
    """A component for each non-blank line, in order, all with the same name."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in lines[:_MOST_LINES]:
        yield Component(name, _digest_of_line(line), line[:_LONGEST_LINE])
    if lines[_MOST_LINES:]:
        text = units.write_count(len(lines) - _MOST_LINES, "more line")
        yield Component(name, key_records.digest("\n".join(lines[_MOST_LINES:])), text)


def _describe_input(text: str) -> str:
    """The fields of ``TensorMetadata(…)`` with unusual values, as fields() parses them; else which size it is."""
    match = re.search(r"TensorMetadata\((.*)\)", text, re.DOTALL)
    if match is not None and "TensorMetadataAndValues" not in text:
        stated = [field.partition("=")[::2] for field in _split_fields(match[1])]
        said = [f"{name}={_shorten_value(value)}" for name, value in stated if name in _ALWAYS or value not in _USUAL]
        return key_records.cap_text(", ".join(said))
    symbol = re.match(r"\('(\w+)',", text)
    return f"dynamic size {symbol[1]}" if symbol else key_records.cap_text(text)


def _shorten_value(value: str) -> str:
    value = re.sub(r"torch\.Size\(\[(.*)\]\)", r"[\1]", value)
    value = re.sub(r"device\(type='(\w+)'(?:, index=(\d+))?\)", lambda m: m[1] + (f":{m[2]}" if m[2] else ""), value)
    return value.removeprefix("torch.")


def parse_fields(text: str) -> dict[str, str]:
    """The fields of a tensor by name, parsed from the text of an input's component; empty for any other text."""
    found = [part.partition("=")[::2] for part in _split_fields(text)]
    return dict(found) if {"dtype", "shape"} <= {name for name, _ in found} else {}


def _split_fields(text: str) -> list[str]:
    """Split at the commas outside of brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


KERNEL, OPTIONS, SOURCE_LINE = "kernel with what it calls", "options", "kernel source line"


def _list_kernel_parts(request: KernelRequest) -> Iterator[Component]:
    """The parts of the key that ``triton.compile`` has computed for this request."""
    source, options, target = request.source, request.options, request.backend.target
    yield make_triton_part(sys.modules["triton.runtime.cache"].triton_key(), sys.modules["triton"].__version__)
    yield make_component("target", f"{target.backend} {target.arch}")
    yield make_component("ptxas" if target.backend == "cuda" else "backend", str(request.backend.hash()))
    yield from (
        _list_source_parts(source) if getattr(source, "fn", None) is not None else split_source(SOURCE_LINE, source.src)
    )
    yield from (make_component(f"option {name}", str(value)) for name, value in sorted(vars(options).items()))
    yield Component(OPTIONS, key_records.digest(options.hash()), "")
    yield from (make_variable_part(name, value) for name, value in sorted(request.variables.items()))


def make_triton_part(triton_key: str, version: str) -> Component:
    """Triton itself, in the key of a kernel."""
    return Component("triton", key_records.digest(triton_key), f"{version} (files {triton_key[:6]})")


def make_variable_part(name: str, value: object) -> Component:
    """A variable, in the key of a kernel."""
    text = str(value)
    return Component(f"{ENVIRONMENT}{name}", key_records.digest(text), key_records.mask_variable(name, text))


def _list_source_parts(source: Any) -> Iterator[Component]:
    kernel = source.fn
    yield Component(KERNEL, key_records.digest(str(kernel.cache_key)), "")
    yield from split_source(SOURCE_LINE, kernel.src)
    yield make_component("first line of the kernel in its file", str(getattr(kernel, "starting_line_number", "")))
    for (name, _), (value, _) in getattr(kernel, "used_global_vals", {}).items():
        yield make_component(f"global {name}", _format_value(value))
    names = getattr(getattr(kernel.fn, "__code__", None), "co_names", ())
    keys = {name: getattr(kernel.__globals__.get(name), "cache_key", None) for name in names}
    for name, key in sorted(keys.items()):
        if isinstance(key, str):
            yield Component(f"source of {name}, which it calls", key_records.digest(key), "")
    for argument, kind in source.signature.items():
        yield make_component(f"type of argument {argument}", str(kind))
    for path, value in source.constants.items():
        yield Component(
            f"constexpr {_name_argument(kernel, path)}",
            key_records.digest(_format_value(value)),
            key_records.cap_text(str(getattr(value, "__name__", value))),
        )
    for path, attributes in source.attrs.items():
        yield make_component(f"attributes of argument {_name_argument(kernel, path)}", str(attributes))


def _name_argument(kernel: Any, path: tuple[int, ...]) -> str:
    first, *rest = path
    return ".".join([kernel.arg_names[first], *map(str, rest)])


def _format_value(value: Any) -> str:
    """The value as it enters Triton's key."""
    return str(getattr(value, "cache_key", value))
