"""Files that Inductor generates: sources, written and read back to be executed, and the libraries built from them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from safecache import compiles
from safecache.built_code import generated, library_builds
from safecache.patching.hook import hook, verifier
from safecache.tiers import fallback

__all__ = [
    "build",
    "get_target_file_path",
    "init",
    "init_builder",
    "reload_python_module",
    "worker_compile_cpp",
    "write",
    "write_atomic",
    "write_to_disk",
]


@verifier(
    "torch._inductor.codecache:write(content, extension, extra=, hash_type=, specified_dir=, key=)",
    why="Stock torch keeps whatever file already lies at the path, even one whose content differs from the "
    "generated source.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/codecache.py#L601",
    copies=("torch._inductor.autotune_process",),
)
def write(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """codecache.write: an existing file is replaced unless it holds what would have been written."""

    def write_source(content: str | bytes, *rest: Any, **named: Any) -> Any:
        if "specified_dir" in named:
            named["specified_dir"] = generated.find_header_directory(named["specified_dir"])
        name, path = generated.put(lambda: wrapped(content, *rest, **named), content)
        library_builds.current_build().note_source(path)
        return name, path

    if kwargs.get("specified_dir"):  # of the precompiled headers: precompile_header handles its failures
        return write_source(*args, **kwargs)
    return fallback.attempt(lambda: write_source(*args, **kwargs))


@hook(
    "torch._inductor.codecache:write_atomic(path_, content, make_dirs=, encode_utf_8=)",
    why="Stock torch names its temporary file after pid and thread, so two containers on one volume can publish "
    "each other's content.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/codecache.py#L626",
    copies=(
        "torch._functorch._aot_autograd.autograd_cache",
        "torch._inductor.codegen.multi_kernel",
        "torch._inductor.codegen.triton",
    ),
)
def write_atomic(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """write_atomic: the file appears whole."""

    def write_file(path_: Any, content: Any, make_dirs: bool = False, encode_utf_8: bool = False) -> None:
        if isinstance(content, (str, bytes)):
            path = os.fspath(path_)
            generated.write_file(path, content, encode_utf_8=encode_utf_8, make_directories=make_dirs)
        else:
            wrapped(path_, content, make_dirs, encode_utf_8)  # raises torch's error for such content

    write_file(*args, **kwargs)


@verifier(
    "torch._inductor.output_code:CompiledFxGraph.write_to_disk(self)",
    why="On a cache hit, stock torch leaves any existing file at the source's path and executes it instead of the "
    "entry's source.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/output_code.py#L1028",
)
def write_to_disk(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> str:
    """CompiledFxGraph.write_to_disk: as write(), of the source in the entry."""
    return fallback.attempt(lambda: generated.put_again(lambda: wrapped(*args, **kwargs), instance.source_code))


@verifier(
    "torch._inductor.output_code:CompiledFxGraph.__init__(self, current_callable, graph, gm, output_strides, "
    "disabled_cudagraphs_reason, metrics_deltas, counter_deltas, cudagraphs, example_inputs, static_input_idxs, "
    "fx_kwargs, inputs_to_check, runnable_graph_str, inductor_post_grad_graph_str, compiled_fn_runner=, "
    "inductor_provenance_mapping_str=, inductor_provenance_stack_traces_str=)",  # 2.11
    "self, current_callable, graph, gm, output_strides, disabled_cudagraphs_reason, metrics_deltas, counter_deltas, "
    "cudagraphs, example_inputs, static_input_idxs, compile_region_name, fx_kwargs, inputs_to_check, "
    "runnable_graph_str, inductor_post_grad_graph_str, compiled_fn_runner=, inductor_provenance_mapping_str=, "
    "inductor_provenance_stack_traces_str=",
    why="Stock torch reads the source for its entry back from disk, where another process may have removed or "
    "replaced it.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/output_code.py#L605",
)
def init(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """CompiledFxGraph.__init__: its entry gets the source that was generated, whatever the file holds by now."""

    def initialise(current_callable: Any, graph: Any, *rest: Any, **named: Any) -> None:
        generated.initialise(graph, instance, lambda: wrapped(current_callable, graph, *rest, **named))

    initialise(*args, **kwargs)


@verifier(
    "torch._inductor.codecache:_reload_python_module(key, path, set_sys_modules=)",
    why="Stock torch executes whatever Python file lies at the path in the cache directory, without checking its "
    "content.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/runtime/compile_tasks.py#L37",
)
def reload_python_module(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """_reload_python_module: executes the verified source. Raises EntryRefusedError if nothing attests it."""

    def reload(key: str, path: str, *rest: Any, **named: Any) -> Any:
        module = wrapped(key, generated.admit_source(path, key), *rest, **named)
        module.__file__ = path
        return module

    return reload(*args, **kwargs)


@verifier(
    "torch._inductor.codecache:_worker_compile_cpp(lock_path, cpp_builders)",
    why="Stock torch skips the build if any file exists at the target path, even a truncated or planted library.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/codecache.py#L4174",
)
def worker_compile_cpp(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """_worker_compile_cpp: builds, under its lock, unless all targets exist and are attested."""

    def compile(lock_path: str, cpp_builders: Sequence[Any]) -> Any:
        if library_builds.are_attested(builder.get_target_file_path() for builder in cpp_builders):
            return None
        with compiles.override_scope(build=library_builds.Build(verifies=True), lock_guard=None):
            return wrapped(lock_path, cpp_builders)

    return compile(*args, **kwargs)


@verifier(
    "torch._inductor.cpp_builder:CppBuilder.__init__(self, name, sources, BuildOption, output_dir=)",
    why="Stock torch sends compile workers only paths of sources, so a source replaced before the compiler reads it "
    "is built.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/cpp_builder.py#L2511",
)
def init_builder(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """CppBuilder.__init__: records the digests of its sources for the compile worker that it may be sent to."""

    def initialise(name: str, sources: str | list[str], BuildOption: Any, *rest: Any, **named: Any) -> None:
        wrapped(name, sources, BuildOption, *rest, **named)
        library_builds.attach_inputs(instance, sources, BuildOption)

    initialise(*args, **kwargs)


@verifier(
    "torch._inductor.cpp_builder:CppBuilder.get_target_file_path(self)",
    why="Callers of this function take any file that exists at the returned path for a finished, valid build.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/cpp_builder.py#L2718",
)
def get_target_file_path(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> str:
    """CppBuilder.get_target_file_path: quarantines an unattested file before torch asks whether there is one."""
    path: str = wrapped(*args, **kwargs)
    library_builds.current_build().settle_target(path)
    return path


@verifier(
    "torch._inductor.cpp_builder:CppBuilder.build(self)",
    why="The compiler writes to the final path, so a killed link leaves a partial library that crashes every later "
    "process.",
    issue="https://github.com/pytorch/pytorch/issues/102539",
)
def build(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """CppBuilder.build: builds where nobody else can interfere, and attests the result."""
    return library_builds.current_build().run(lambda: wrapped(*args, **kwargs), instance)
