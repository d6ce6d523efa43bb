"""AOTInductor: packages that are made and loaded, and operators compiled for eager mode."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from safecache import load_errors
from safecache.built_code import generated, packages, sources
from safecache.entries import artifacts
from safecache.errors import SafecacheError
from safecache.fs import ownership
from safecache.patching.hook import verifier
from safecache.places.layout import CodeFile
from safecache.places.refs import Ref
from safecache.ports import Use, plugs
from safecache.reporting import events, report
from safecache.reporting.kinds import Kind, Reason
from safecache.signing import provenance
from safecache.store import gate

__all__ = [
    "compile",
    "compile_eager",
    "eager_cache_dir",
    "load",
    "load_eager_cache",
    "load_package",
    "package",
]


@verifier(
    "torch._inductor.codecache:AotCodeCompiler.compile(cls, graph, wrapper_code, kernel_code, "
    "serialized_extern_kernel_nodes, *device_type, *additional_files)",
    why="AOTInductor records nothing about the libraries that it builds, so a replaced library looks like its own.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/codecache.py#L2686",
)
def compile(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """AotCodeCompiler.compile: attests the libraries it has just built, and reports it if others could have written."""
    made = wrapped(*args, **kwargs)
    for path in _iter_paths(made):
        if path.endswith(".so"):
            root = generated.find_root(path)
            objection = ownership.find_exposure(os.path.dirname(path))
            if objection is not None:
                message = f"built {path} where others can write"
                remedy = "Help: build in a directory that only you can write to"
                events.report(Reason.STOOD_DOWN, message, why=objection, cause=root, remedy=remedy)
            gate.attest_file(CodeFile(path, root))
    return made


def _iter_paths(files: Any) -> Iterator[str]:
    """The paths in what AOTInductor returns or packages: a path, a list of paths and weights, or lists by model."""
    if isinstance(files, str):
        yield files
    elif isinstance(files, dict):
        for each in files.values():
            yield from _iter_paths(each)
    elif isinstance(files, list):
        yield from (file for file in files if isinstance(file, str) and file)


@verifier(
    "torch.export.pt2_archive._package:package_pt2(f, *exported_programs=, *aoti_files=, *extra_files=, "
    "*opset_version=, *pickle_protocol=, *executorch_files=)",
    why="Stock torch writes packages without a signature, so no loader can tell a forged or altered package.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/export/pt2_archive/_package.py#L648",
    copies=("torch._inductor.package.package", "torch.nativert.backends._lower_utils"),
)
def package(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """package_pt2, which torch.export.save calls: the archive gets a seal appended."""

    def write(f: Any, *, aoti_files: Any = None, **named: Any) -> Any:
        sources = [(path, generated.find_root(path)) for path in _iter_paths(aoti_files)]
        return packages.build_and_seal_package(f, sources, lambda place: wrapped(place, aoti_files=aoti_files, **named))

    return write(*args, **kwargs)


@verifier(
    "torch._inductor.package:load_package(path, model_name=, run_single_threaded=, num_runners=, device_index=)",
    "path, model_name=, run_single_threaded=, num_runners=, device_index=, use_stream_affinity=",  # 2.15
    why="Stock torch answers a RuntimeError of load_pt2 by loading the same unchecked package in another way.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/package/package.py#L125",
)
def load_package(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """load_package, as load(), but what it raises is RefusedArtifactError.

    Not so the functions that it calls, nor torch.export.load(): where those raise a RuntimeError, torch reads the same
    bytes in another way.
    """
    with artifacts.raise_on_refusal():
        return load(wrapped, instance, args, kwargs)


@verifier(
    "torch.export.pt2_archive._package:_load_aoti(file, model_name, run_single_threaded, num_runners, device_idx)",
    "file, model_name, run_single_threaded, num_runners, device_idx, use_stream_affinity=",  # 2.15
    why="Stock torch unpacks any package below the temporary directory and dlopens its library, without checking "
    "who made it.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/export/pt2_archive/_package.py#L1055",
)
def load(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """_load_aoti: verifies the package, and explains a failure to load from a noexec mount.

    Raises EntryRefusedError, in default mode too, since there is nothing to recompile.
    """
    if not args and not kwargs:
        return wrapped()  # raises the error for the missing argument
    name, rest, named = _split_first(args, kwargs, "path", "file")
    with packages.verify_package(name) as place:
        moves = provenance.torch_release() >= packages.PACKAGES_OBEY_TMPDIR_FROM
        explained = partial(load_errors.explain_load, wrapped, (place, *rest), named, "TMPDIR" if moves else None)
        if not os.path.lexists(place):
            return explained()
        root, which = _find_cache(), packages.name_package(place)
        refusal = plugs.load_guard.find_refusal(Ref(Kind.PACKAGE, "", root), which)
        if refusal is not None:
            raise report.make_refusal_error(refusal._replace(remedy="Make it anew."), Kind.PACKAGE, str(name))
        return plugs.load_guard.load(Use(Kind.PACKAGE, root, [which], forgives=True), explained)


def _find_cache() -> str:
    root: str = importlib.import_module("torch._inductor.runtime.cache_dir_utils").cache_dir()
    return root


def _split_first(args: Any, kwargs: Any, *names: str) -> tuple[Any, Any, Any]:
    """The first argument, given by position or as one of these ``names``, and the remaining ones."""
    if args:
        return args[0], args[1:], kwargs
    name = next(name for name in names if name in kwargs)
    return kwargs[name], (), {other: value for other, value in kwargs.items() if other != name}


@verifier(
    "torch._inductor.aoti_eager:aoti_eager_cache_dir(namespace, device)",
    why="Stock torch uses this directory for libraries that it dlopens, even if other users can write to it.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/aoti_eager.py#L41",
)
def eager_cache_dir(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Path:
    """aoti_eager_cache_dir, or a directory of this process alone if others can write there."""
    return Path(sources.secure_cache(str(wrapped(*args, **kwargs))))


@verifier(
    "torch._inductor.aoti_eager:load_aoti_eager_cache(ns, op_func_name_with_overload, device_type)",
    why="Stock torch hands C++ any library path that the JSON file names, and C++ dlopens it unchecked.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/aoti_eager.py#L72",
)
def load_eager_cache(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """load_aoti_eager_cache, whose results C++ loads: a refused library is compiled again."""

    def load(ns: str, op_func_name_with_overload: str, device_type: str) -> Any:
        if _has_backend(device_type):
            return wrapped(ns, op_func_name_with_overload, device_type)
        root, listing = _find_places(ns, op_func_name_with_overload, device_type)
        if not sources.settle_side_file(listing, root, Kind.SOURCE):
            return []
        found = wrapped(ns, op_func_name_with_overload, device_type)
        for item in found:
            place = sources.admit_side_file(item["kernel_path"], root)
            if place is None:
                return []
            item["kernel_path"] = place
        return found

    return _call_and_log(lambda: load(*args, **kwargs))


@verifier(
    "torch._inductor.aoti_eager:aoti_compile_with_persistent_cache(ns, op_func_name_with_overload, device_type, "
    "dynamic, f, args, kwargs, *dynamic_shapes=, *options=, *remove_runtime_assertions=, *disable_constraint_solver=)",
    why="Stock torch adds its kernel to whatever JSON file it finds, so foreign library paths in there survive.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/aoti_eager.py#L361",
)
def compile_eager(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """aoti_compile_with_persistent_cache: adds to the JSON file if that is attested; attests it and the library."""

    def build(ns: str, op_func_name_with_overload: str, device_type: str, *rest: Any, **named: Any) -> str:
        if _has_backend(device_type):
            return str(wrapped(ns, op_func_name_with_overload, device_type, *rest, **named))
        root, listing = _find_places(ns, op_func_name_with_overload, device_type)
        sources.settle_side_file(listing, root, Kind.SOURCE)
        library: str = wrapped(ns, op_func_name_with_overload, device_type, *rest, **named)
        if library:  # empty if the operator cannot be compiled
            gate.attest_file(CodeFile(library, root))
            gate.attest_file(CodeFile(listing, root, Kind.SOURCE))
        return library

    return _call_and_log(lambda: build(*args, **kwargs))


def _call_and_log(call: Callable[[], Any]) -> Any:
    """Return what ``call`` does, and also log an error of ours: C++ calls these functions and drops what they raise."""
    try:
        return call()
    except SafecacheError as error:
        events.log_line(logging.ERROR, str(error))
        raise


def _find_places(namespace: str, operator: str, device: str) -> tuple[str, str]:
    """The operators' directory, and this operator's JSON file."""
    root = str(_get_module().aoti_eager_cache_dir(namespace, device))
    return root, os.path.join(root, f"{operator}.json")


def _has_backend(device: str) -> bool:
    """Tell whether the device has a cache of its own, whose layout is not known here (torch 2.12)."""
    return device in getattr(_get_module(), "_aoti_compile_backends", {})


def _get_module() -> Any:
    return sys.modules["torch._inductor.aoti_eager"]
