"""vLLM's own: its loading and saving of compiled models, and the files beside them, some of which SGLang has, too."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import wrapt

from safecache import compiles
from safecache.built_code import vllm_files
from safecache.errors import RefusedArtifactError
from safecache.integrations import compile_scopes
from safecache.patching.hook import BUILTIN_OPEN, OS_MODULE, hook, verifier
from safecache.ports import Served, tell
from safecache.reporting import events
from safecache.reporting.kinds import Reason

__all__ = [
    "initialize_cache",
    "load_artifact",
    "load_model",
    "load_model_info",
    "open_file",
    "reconstruct",
    "save_model_info",
    "sending_os",
]

_CLASS = "vllm.model_executor.models.registry:_LazyRegisteredModel"


@hook(
    "vllm.compilation.decorators:_try_load_aot_compiled_fn(model, aot_compilation_path)",  # 0.20 to 0.33
    why="vLLM catches every exception of a model load and compiles again, so a refused model cannot stop the start.",
    issue="https://github.com/vllm-project/vllm/pull/35115",
)
def load_model(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """_try_load_aot_compiled_fn: what strict mode raises leaves it; vLLM would log it, and compile.

    None too if another rank of the tensor-parallel group has no model to use. Its compile meets the others in a
    collective, as in AllReduceFusionPass, to which a rank that has loaded its own would not come.
    """

    def load(model: Any, aot_compilation_path: str) -> Any:
        found = None
        try:
            with events.propagate_strict():
                vllm_files.fetch_model(aot_compilation_path)
                tell(Served(model))
                found = wrapped(model, aot_compilation_path)
        finally:
            is_usable = compile_scopes.agree_on_hit(found is not None, _find_tensor_parallel_ranks())
        if found is not None and not is_usable:
            why, remedy = "another rank of its group has none to use", "Help: give every rank the same cache directory"
            text = events.compose_message("the loaded model is not used", Reason.OTHER_RANK_MISSED.value, why, remedy)
            events.log_line(logging.WARNING, f"safecache: {text} (see {Reason.OTHER_RANK_MISSED.help})")
        return found if is_usable else None

    return load(*args, **kwargs)


def _find_tensor_parallel_ranks() -> list[int]:
    group = getattr(sys.modules.get("vllm.distributed.parallel_state"), "_TP", None)
    return [] if group is None else group.ranks


@hook(
    "vllm.compilation.caching:reconstruct_serializable_fn_from_mega_artifact(state, standalone_compile_artifacts, "
    "vllm_config, sym_shape_indices_map, returns_tuple_map, fake_mode)",
    why="vLLM takes a saved model with no compiled part as a cache hit, and runs eager from then on.",
    issue="https://github.com/vllm-project/vllm/pull/56879",
)
def reconstruct(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """reconstruct_serializable_fn_from_mega_artifact. Raises RefusedArtifactError for one with no compiled part."""

    def build(state: Any, standalone_compile_artifacts: Any, *rest: Any, **named: Any) -> Any:
        vllm_files.require_parts(standalone_compile_artifacts.submodule_names())
        return wrapped(state, standalone_compile_artifacts, *rest, **named)

    return build(*args, **kwargs)


class _SendingOs(wrapt.ObjectProxy[Any]):
    """The module os, except that a model is sent to the remote once it has its name."""

    def __init__(self, module: Any, enabled: Callable[[], bool]) -> None:
        super().__init__(module)
        self._self_enabled = enabled

    def replace(self, source: Any, target: Any, *rest: Any, **named: Any) -> None:
        """Rename ``source`` to ``target``, as os.replace, and send the file to the tiers if it is a model."""
        self.__wrapped__.replace(source, target, *rest, **named)
        if self._self_enabled():
            vllm_files.send_model(os.fspath(target))


@hook(
    "vllm.compilation.decorators:os",
    OS_MODULE,
    why="vLLM saves a compiled model to local disk only, so every other machine compiles it again.",
    issue="https://github.com/pytorch/pytorch/issues/170621",
)
def sending_os(module: Any, *, enabled: Callable[[], bool]) -> Any:
    """A proxy of the module ``os``, for the functions that save models."""
    return _SendingOs(module, enabled)


@hook(
    "vllm.compilation.backends:CompilerManager.initialize_cache(self, cache_dir, disable_cache=, prefix=)",
    why="vLLM looks for its table of artifacts on local disk only, so a new machine compiles everything again.",
    issue="https://github.com/pytorch/pytorch/issues/170621",
)
def initialize_cache(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """CompilerManager.initialize_cache, which begins with the table: it may be in the remote alone."""

    def initialize(cache_dir: str, disable_cache: bool = False, *rest: Any, **named: Any) -> None:
        if not disable_cache:
            vllm_files.fetch_artifacts(cache_dir)
        wrapped(cache_dir, disable_cache, *rest, **named)

    initialize(*args, **kwargs)


@hook(
    "vllm.compilation.backends:CompilerManager.load(self, graph, example_inputs, graph_index, compile_range)",
    why="vLLM catches nothing when an artifact fails to load, so one bad artifact ends the engine at every start.",
    issue="https://github.com/vllm-project/vllm/issues/52154",
)
def load_artifact(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """CompilerManager.load: None for an artifact that is refused, so that vLLM compiles; raises that in strict mode.

    vLLM catches nothing that its loading raises, and would ask for the same artifact at every start.
    """
    try:
        with compiles.override_scope(can_compile=True):
            return wrapped(*args, **kwargs)
    except RefusedArtifactError as error:
        if error.is_strict:
            raise
        return None


@verifier(
    "vllm.compilation.backends:open",
    BUILTIN_OPEN,
    why="vLLM trusts whatever table of artifacts it finds, and a full disk while it writes one ends the engine.",
    issue="https://github.com/vllm-project/vllm/pull/38920",
)
def open_file(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """open, as the backends know it: its table of artifacts is verified, and a full disk does not end the engine."""

    def open_path(file: Any, mode: str = "r", *rest: Any, **named: Any) -> Any:
        name = os.path.basename(file) if isinstance(file, str) else ""
        if mode == "r" and name == vllm_files.TABLE:
            return vllm_files.open_table(file)
        if mode == "r" and name == vllm_files.UNUSED_TABLE:
            return vllm_files.make_empty_table()
        if mode == "w" and (name == vllm_files.TABLE or vllm_files.is_account(name)):
            return vllm_files.Written(file)
        return wrapped(file, mode, *rest, **named)

    return open_path(*args, **kwargs)


@verifier(
    f"{_CLASS}._load_modelinfo_from_cache(self, module_hash)",
    why="vLLM believes any file on what a model's class can do, and without one imports itself in a second process.",
    issue="https://github.com/vllm-project/vllm/issues/19317",
)
def load_model_info(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """_load_modelinfo_from_cache: what is verified, here or in a tier; with None vLLM looks at the class."""

    def load(module_hash: str) -> Any:
        content = vllm_files.read_model_info(*_name_info(instance, module_hash))
        with suppress(KeyError, TypeError, ValueError, RecursionError):  # SAFECACHE=observe takes any content
            found = json.loads(content or b"")
            if found["hash"] == module_hash:
                return sys.modules[type(instance).__module__]._ModelInfo(**found["modelinfo"])
        return None

    return load(*args, **kwargs)


@hook(
    f"{_CLASS}._save_modelinfo_to_cache(self, mi, module_hash)",
    why="vLLM writes what a model's class can do to local disk only, so each new machine imports vLLM twice.",
    issue="https://github.com/vllm-project/vllm/pull/51746",
)
def save_model_info(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """_save_modelinfo_to_cache: the same file, with a record, and a copy that travels."""

    def save(mi: Any, module_hash: str) -> None:
        vllm_files.keep_model_info(*_name_info(instance, module_hash), {"hash": module_hash, "modelinfo": asdict(mi)})

    save(*args, **kwargs)


def _name_info(model: Any, module_hash: str) -> tuple[str, str]:
    """Name the file in which vLLM keeps what it knows of a model's class, and all that this follows from."""
    path = os.path.abspath(model._get_cache_dir() / model._get_cache_filename())
    # Classes take branches by these, and by the platform that torch's version names.
    versions = (getattr(sys.modules.get(name), "__version__", "") for name in ("vllm", "torch", "transformers"))
    return path, f"{' '.join(versions)} {model.module_name}:{model.class_name} {module_hash}"
