"""torch.export: archives of programs, in which weights, constants and sample inputs may be pickled (CVE-2026-4538).

What is imported here is little: some of these functions are there as soon as torch is.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import Any

import wrapt

from safecache.built_code import restricted
from safecache.patching.hook import IMPORTLIB_MODULE, PICKLE_MODULE, SYMPY_MODULE, TORCH_MODULE, verifier

__all__ = [
    "deserialize_artifact",
    "deserialize_program",
    "guard_importlib",
    "guard_pickle",
    "guard_sympy",
    "guard_torch",
    "load_pt2",
]


@verifier(
    "torch.export.pt2_archive._package:load_pt2(f, *expected_opset_version=, *run_single_threaded=, *num_runners=, "
    "*device_index=, *load_weights_from_disk=)",  # to 2.14
    "f, *expected_opset_version=, *run_single_threaded=, *num_runners=, *device_index=, *load_weights_from_disk=, "
    "*use_stream_affinity=",
    why="Stock torch unpickles weights, constants and sample inputs of any archive, which executes code that the "
    "archive contains.",
    issue="https://github.com/pytorch/pytorch/pull/176791",
    copies=("torch._inductor.package.package",),
)
@verifier(
    "torch.export:load(f, *extra_files=, *expected_opset_version=)",
    why="Stock torch unpickles weights, constants and sample inputs of any archive, which executes code that the "
    "archive contains.",
    issue="https://github.com/pytorch/pytorch/pull/176791",
)
def load_pt2(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """load_pt2 and torch.export.load, which unpickle weights, constants and inputs: verify or restrict the archive.

    Raises EntryRefusedError, in default mode too, since there is nothing to recompile.
    """
    from safecache.built_code import packages

    if not args and "f" not in kwargs:
        return wrapped(*args, **kwargs)  # raises the error for the missing argument
    name, rest, named = (args[0], args[1:], kwargs) if args else (kwargs["f"], (), kwargs)
    named = {each: value for each, value in named.items() if each != "f"}
    with packages.admit_program(name) as place:
        return wrapped(place, *rest, **named)


@verifier(
    "torch._export.serde.serialize:deserialize_torch_artifact(serialized)",
    why="Stock torch retries a failed load with weights_only=False, so a malicious pickle need only fail the safe "
    "load.",
    issue="https://github.com/pytorch/pytorch/pull/169761",
)
def deserialize_artifact(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """deserialize_torch_artifact, which goes on without ``weights_only`` where that fails."""

    def deserialize(serialized: Any) -> Any:
        if not restricted.is_on() or not isinstance(serialized, bytes) or not serialized:
            return wrapped(serialized)
        torch: Any = sys.modules["torch"]
        found = _load_weights(lambda: torch.load(io.BytesIO(serialized), weights_only=True))
        if not isinstance(found, (tuple, dict)):
            raise _make_refusal(f"a {type(found).__name__}")
        return found

    return deserialize(*args, **kwargs)


@verifier(
    "torch._export.serde.serialize:ExportedProgramDeserializer.deserialize(self, exported_program, state_dict, "
    "constants, example_inputs=, *_unsafe_skip_version_check=)",
    why="Stock torch pastes guards and names from the archive into Python source and executes it.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/export/_unlift.py#L221",
)
def deserialize_program(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """ExportedProgramDeserializer.deserialize, which makes Python of names and guards: restricted to plain ones."""

    def deserialize(exported_program: Any, *rest: Any, **named: Any) -> Any:
        if restricted.is_on():
            try:
                found = restricted.find_code(exported_program)
            except Exception as error:
                raise _make_refusal("a malformed program") from error
            if found:
                raise _make_refusal(found)
        return wrapped(exported_program, *rest, **named)

    return deserialize(*args, **kwargs)


class _Torch(wrapt.ObjectProxy[Any]):
    """The module torch, as archives are read with it: nothing but weights is unpickled of a restricted one."""

    def load(self, *args: Any, **kwargs: Any) -> Any:
        """Call torch.load, limited to weights while a restricted archive is read."""
        if not restricted.is_on():
            return self.__wrapped__.load(*args, **kwargs)
        return _load_weights(lambda: self.__wrapped__.load(*args, **kwargs | {"weights_only": True}))

    @property
    def _C(self) -> Any:
        return _Bindings(self.__wrapped__._C) if restricted.is_on() else self.__wrapped__._C


class _Bindings(wrapt.ObjectProxy[Any]):
    def _pickle_load_obj(self, *_: Any) -> Any:
        raise _make_refusal("a script object")


class _Pickle(wrapt.ObjectProxy[Any]):
    def loads(self, *args: Any, **kwargs: Any) -> Any:
        """Call pickle.loads, unless a restricted archive is read: that is refused."""
        if restricted.is_on():
            raise _make_refusal("a pickle")
        return self.__wrapped__.loads(*args, **kwargs)


class _Sympy(wrapt.ObjectProxy[Any]):
    def sympify(self, expression: Any, *args: Any, **kwargs: Any) -> Any:
        """Call sympy.sympify, which evaluates text as Python; of a restricted archive, only a plain formula."""
        is_made = isinstance(expression, self.__wrapped__.Basic)
        functions = kwargs.get("locals") or {}
        if restricted.is_on() and not is_made and not restricted.is_plain_expression(str(expression), functions):
            raise _make_refusal("an expression")
        return self.__wrapped__.sympify(expression, *args, **kwargs)


class _Importlib(wrapt.ObjectProxy[Any]):
    def import_module(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Import the module of a class that a tree of inputs has in it; of a restricted archive, only builtins."""
        if restricted.is_on() and name != "builtins":
            raise _make_refusal(f"a class of the module {name[:100]}")
        return self.__wrapped__.import_module(name, *args, **kwargs)


@verifier(
    "torch.export.pt2_archive._package:torch",
    TORCH_MODULE,
    why="Stock torch loads pickled weights with weights_only=False, and unpickles script objects, if the archive "
    "asks for it.",
    issue="https://github.com/pytorch/pytorch/pull/191149",
)
def guard_torch(module: Any, *, enabled: Callable[[], bool]) -> Any:
    """A proxy of torch, for what reads archives."""
    return _Torch(module)


@verifier(
    "torch.export.pt2_archive._package:pickle",
    PICKLE_MODULE,
    why="Stock torch calls pickle.loads on opaque constants of an archive, whatever a caller says about weights_only.",
    issue="https://github.com/pytorch/pytorch/pull/191149",
    since=(2, 13),
)
def guard_pickle(module: Any, *, enabled: Callable[[], bool]) -> Any:
    """A proxy of pickle, likewise."""
    return _Pickle(module)


@verifier(
    "torch._export.serde.serialize:sympy",
    SYMPY_MODULE,
    why="Stock torch passes expressions from the archive to sympy.sympify, which evaluates text as Python.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_export/serde/serialize.py#L2429",
)
def guard_sympy(module: Any, *, enabled: Callable[[], bool]) -> Any:
    """A proxy of sympy, likewise."""
    return _Sympy(module)


@verifier(
    "torch.utils._pytree:importlib",
    IMPORTLIB_MODULE,
    why="Stock torch imports any module that an archive names for an enum in its input tree, which runs the "
    "module's code.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/utils/_pytree.py#L2040",
)
def guard_importlib(module: Any, *, enabled: Callable[[], bool]) -> Any:
    """A proxy of importlib, likewise."""
    return _Importlib(module)


def _load_weights(load: Callable[[], Any]) -> Any:
    try:
        return load()
    except Exception as error:
        raise _make_refusal("a pickle") from error


def _make_refusal(what: str) -> Exception:
    from safecache.built_code import packages

    return packages.refuse(what)
