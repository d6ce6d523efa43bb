"""FlashInfer: the libraries that it builds with ninja and the objects that it compiles with CuTe DSL."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from safecache import compiles
from safecache.built_code import extension_builds, kept_code, lock_guards, ninja_builds, sources
from safecache.built_code.ninja_builds import Build
from safecache.fs import ownership, private_directory
from safecache.integrations import cute_dsl
from safecache.patching.hook import PATH, hook, verifier
from safecache.places.layout import CodeFile
from safecache.session import Part, inherit
from safecache.settings import config
from safecache.store import attestations, entry_files, gate
from safecache.tiers import directory_faults
from safecache.tiers.directory_faults import Immovable

__all__ = [
    "assemble_kda",
    "attest_artifact",
    "build_and_load",
    "build_kda",
    "build_loader",
    "build_proxy",
    "compile_alphamoe",
    "compile_cake",
    "cute_build",
    "cute_export",
    "cute_init",
    "cute_load",
    "init_sparse",
    "keep_sparse",
    "load_attested",
    "load_kda",
    "load_library",
    "load_sparse",
    "open_library",
    "run_ninja",
    "writable_workspace",
    "write_ninja",
    "write_text",
]

_ROOT = "https://github.com/flashinfer-ai/flashinfer/blob/v0.7.2/flashinfer"
_SOURCE = f"{_ROOT}/jit"
# The text of each build.ninja that FlashInfer has written, or would, by path.
_texts: Part[dict[str, str]] = Part(dict, inherit)
# Held while FlashInfer's directory is another one.
_replacing: Part[threading.Lock] = Part(threading.Lock)


class _Workspace(type(Path())):  # type: ignore[misc]
    """Path in place of another one, ``__wrapped__``."""

    __wrapped__: Path


@hook(
    "flashinfer.jit.env:FLASHINFER_WORKSPACE_DIR",
    PATH,
    why="FlashInfer's import ends where it cannot write its log, even if all that it needs is in its workspace.",
    issue=f"{_SOURCE}/core.py#L58",
)
def writable_workspace(path: Path, *, enabled: Callable[[], bool]) -> Path:
    """The workspace, or a directory of this process if its log cannot be written; what is built lies elsewhere."""
    log = path / "flashinfer_jit.log"
    is_usable = directory_faults.find_objection(str(path)) is None and (
        not log.exists() or os.access(log, os.W_OK, effective_ids=True)
    )
    workspace = _Workspace(path if is_usable else Path(private_directory.get_process_directory(), "flashinfer"))
    workspace.__wrapped__ = path
    return workspace


@verifier(
    "flashinfer.jit.core:JitSpec.build_and_load(self)",
    why="FlashInfer waits for ever for a lock that a stopped process holds, and ends on one that it cannot open.",
    issue=f"{_SOURCE}/core.py#L337",
)
def build_and_load(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """JitSpec.build_and_load: in a private directory if the workspace, or its lock, cannot be used.

    Raises what it does, and in strict mode CacheWriteError in place of a private build.
    """
    core, env = sys.modules["flashinfer.jit.core"], sys.modules["flashinfer.jit.env"]
    directory = os.path.realpath(env.FLASHINFER_JIT_DIR)
    try:
        loaded = instance.try_load()
        if loaded is not None:
            return loaded
        path = str(instance.lock_path)
        # FlashInfer waits without end: so first as long as for torch's own.
        lock = core.FileLock(path, thread_local=False)
        lock_guards.wait(path, -1.0, lambda seconds: lock.acquire(timeout=seconds))
        lock.release()
        return wrapped(*args, **kwargs)
    except (OSError, RuntimeError) as error:
        fault = directory_faults.find(error, directory)
        if fault is None:
            raise
        private = extension_builds.make_private_directory("cached_ops")
        variable = "FLASHINFER_WORKSPACE_BASE"
        extension_builds.report_private_build(instance.name, directory, private, fault.text, variable, error)
        with _replacing.now, mock.patch.object(env, "FLASHINFER_JIT_DIR", Path(private)):
            return wrapped(*args, **kwargs)


@verifier(
    "flashinfer.jit.core:JitSpecNvcc.try_load(self)",
    why="FlashInfer takes its lock, writes and starts ninja at each start, even if its library is up to date.",
    issue=f"{_SOURCE}/core.py#L536",
)
def load_attested(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """JitSpecNvcc.try_load: also loads an attested library, without a lock, a write or ninja."""
    loaded = wrapped(*args, **kwargs)
    if (
        loaded is not None
        or config.get_environment().get("FLASHINFER_DISABLE_JIT")
        or not os.path.exists(instance.jit_library_path)
    ):
        return loaded
    try:
        with compiles.override_scope(is_planning=True):
            instance.write_ninja()
    except Immovable:
        return None  # build_and_load() then builds in another directory
    return instance.load() if _plan_build(str(instance.ninja_path)).is_attested() else None


@verifier(
    "flashinfer.jit.core:JitSpecNvcc.write_ninja(self)",
    why="FlashInfer follows a link in the place of an output, and builds and loads what it leads to.",
    issue=f"{_SOURCE}/core.py#L511",
)
def write_ninja(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """JitSpecNvcc.write_ninja: quarantines such links first.

    Raises EntryRefusedError in strict mode, and Immovable for one that cannot be quarantined.
    """
    directory = os.path.realpath(instance.build_dir)
    for item in os.scandir(directory) if os.path.isdir(directory) else ():
        if item.is_symlink() and item.name.endswith((".o", ".so")):
            sources.settle_side_file(item.path, directory)
    wrapped(*args, **kwargs)


@verifier(
    "flashinfer.jit.core:JitSpecNvcc.load(self, so_path=)",
    why="FlashInfer loads whatever library lies in its workspace, without checking who built it.",
    issue=f"{_SOURCE}/core.py#L601",
)
def load_library(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """JitSpecNvcc.load: verifies a library in the workspace. Raises EntryRefusedError, in default mode too."""
    sources.add_cache(sys.modules["flashinfer.jit.env"].FLASHINFER_JIT_DIR)
    return wrapped(*args, **kwargs)


@verifier(
    "flashinfer.jit.core:write_if_different(path, content)",
    why="FlashInfer reads its build.ninja back from a directory that others may be able to write to.",
    issue=f"{_SOURCE}/utils.py#L22",
)
def write_text(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """write_if_different, of build.ninja: keeps the text for run_ninja."""

    def write(path: Any, content: str) -> None:
        _texts.now[str(path)] = content
        if not compiles.current.is_planning:
            extension_builds.check_file(path)
            wrapped(path, content)

    write(*args, **kwargs)


@verifier(
    "flashinfer.jit.cpp_ext:run_ninja(workdir, ninja_file, verbose, max_jobs=)",
    "workdir, ninja_file, verbose",  # 0.6
    why="Ninja goes by file times alone, so FlashInfer takes an outdated or planted library with a recent time for "
    "current.",
    issue=f"{_SOURCE}/cpp_ext.py#L411",
    copies=("flashinfer.jit.core",),
)
def run_ninja(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """run_ninja: what nothing attests is quarantined, so that ninja builds it again; it does not run if all is well.

    Raises what ninja's failure does, and EntryRefusedError for a refused file in strict mode.
    """

    def run(workdir: Any, ninja_file: Any, *rest: Any, **named: Any) -> None:
        lines = _texts.now[str(ninja_file)].splitlines()
        several = [line.removeprefix("subninja ") for line in lines if line.startswith("subninja ")]
        builds = [_plan_build(path) for path in several or [str(ninja_file)]]
        directory = os.path.realpath(workdir)
        extension_builds.run_ninja(
            builds, directory, lambda: wrapped(workdir, ninja_file, *rest, **named), is_exclusive=True
        )

    run(*args, **kwargs)


def _plan_build(ninja_file: str) -> Build:
    """The build of the module whose build.ninja, written or not, lies there."""
    return ninja_builds.plan_build(ninja_file, _texts.now[ninja_file])


@verifier(
    "flashinfer.jit.cubin_loader:setup_cubin_loader(dll_path)",
    why="FlashInfer opens its library once more by ctypes, and another process can replace it after any check.",
    issue=f"{_SOURCE}/cubin_loader.py#L305",
    copies=(
        "flashinfer.jit",
        "flashinfer.cudnn.utils",
        "flashinfer.decode",
        "flashinfer.fused_moe.core",
        "flashinfer.gemm.gemm_base",
        "flashinfer.mla._core",
        "flashinfer.mla._batch_mla._backends.trtllm_gen_backend",
        "flashinfer.prefill",
        "flashinfer.trtllm_low_latency_gemm",
    ),
)
def open_library(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """setup_cubin_loader: verifies a library that lies in a cache. Raises EntryRefusedError, in default mode too."""

    def open_verified(dll_path: str) -> None:
        wrapped(sources.find_load_path(dll_path, is_built=True))

    open_verified(*args, **kwargs)


@verifier(
    "flashinfer.jit.cubin_loader:get_artifact(file_name, sha256, session=)",
    why="FlashInfer checks the bytes of a library that it has downloaded, drops them, and has its path opened again.",
    issue=f"{_SOURCE}/cubin_loader.py#L207",
)
def attest_artifact(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> bytes:
    """get_artifact: attests what has the digest that FlashInfer states, for who loads code from that path."""

    def get(file_name: str, sha256: str, *rest: Any, **named: Any) -> bytes:
        content: bytes = wrapped(file_name, sha256, *rest, **named)
        directory = os.path.realpath(sys.modules["flashinfer.jit.env"].FLASHINFER_CUBIN_DIR)
        if hashlib.sha256(content).hexdigest() == sha256:  # FlashInfer can be told not to compare
            attestations.attest_in_process(os.path.realpath(os.path.join(directory, file_name)), content)
        sources.add_cache(directory)
        return content

    return get(*args, **kwargs)


_EXISTS = "FlashInfer takes whatever file has the name of what it would compile, whoever has put it there."
_KDA = "flashinfer.kda_kernels.tirx.cache:_KdaTirxSpec"
_NEWER = _ROOT.replace("v0.7.2", "v0.7.4")
_BSA = "flashinfer.cute_dsl.sparse.bsa_utils.cache_utils:JITPersistentCache"


def _compile_once(path: str, make: Callable[[], Any]) -> Any:
    """Return what ``make`` does, which leaves the file at ``path``, or makes it where none is.

    One that nothing attests is quarantined before, and a new one attested, unless others can write there. Raises
    EntryRefusedError in strict mode, and Immovable for one that cannot be quarantined.
    """
    before = cute_dsl.identify_file(path) if _settle_file(path) else None
    made = make()
    _attest_if_new(path, before)
    return made


def _settle_file(path: str) -> bool:
    return sources.settle_side_file(path, os.path.dirname(path))


def _attest_if_new(path: str, before: list[int] | None) -> None:
    directory = os.path.dirname(path)
    if cute_dsl.identify_file(path) not in (None, before) and ownership.find_exposure(directory) is None:
        gate.attest_file(CodeFile(path, directory), digest=gate.digest_file(path))


@verifier(
    "flashinfer.jit.cake_gdn:_compile_cubin(source, *arch, *digest, *compile_options, *include_paths, *nvcc)",
    why=_EXISTS,
    issue=f"{_SOURCE}/cake_gdn.py#L158",
)
def compile_cake(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> bytes:
    """_compile_cubin of Cake GDN: the cubin is verified. Raises as _compile_once() does."""

    def compile_cubin(source: Path, *, arch: str, digest: str, **named: Any) -> bytes:
        path = sys.modules["flashinfer.jit.cake_gdn"]._cubin_path(source, arch=arch, digest=digest)
        make = partial(wrapped, source, arch=arch, digest=digest, **named)
        content: bytes = _compile_once(str(path), make)
        return content

    return compile_cubin(*args, **kwargs)


@verifier(
    "flashinfer.jit.alphamoe_nvrtc:_prepare_cubins(build_dir, *source_dir, *arches)",
    "build_dir, *source_dir, *arches, *images_dir",  # 0.7.4
    why="FlashInfer embeds a cubin from its workspace into a library if a text beside it states the same digest.",
    issue=f"{_SOURCE}/alphamoe_nvrtc.py#L46",
)
def compile_alphamoe(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """_prepare_cubins of AlphaMoE: the cubins are verified. Raises as _compile_once() does."""

    def prepare(build_dir: Path, **named: Any) -> Any:
        make = partial(wrapped, build_dir, **named)
        return _compile_several(build_dir / "alphamoe_nvrtc_cubins", "*.cubin", make)

    return prepare(*args, **kwargs)


def _compile_several(directory: Path, pattern: str, make: Callable[[], Any]) -> Any:
    """Do what _compile_once() does for each file of ``pattern`` below ``directory``."""
    before = {path: cute_dsl.identify_file(str(path)) for path in directory.glob(pattern) if _settle_file(str(path))}
    made = make()
    for path in directory.glob(pattern):
        _attest_if_new(str(path), before.get(path))
    return made


@verifier(
    "flashinfer.kda_kernels.ptx.static_runtime:_cubin(name)",
    why="FlashInfer embeds whatever cubin has the name of the one that it would assemble, whoever has put it there.",
    issue=f"{_NEWER}/kda_kernels/ptx/static_runtime.py#L107",
)
def assemble_kda(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> bytes:
    """_cubin of KDA: the cubins are verified. Raises as _compile_once() does."""
    default = sys.modules["flashinfer.jit.env"].FLASHINFER_JIT_DIR / "kda_ptx"
    directory = Path(config.get_environment().get("FLASHINFER_KDA_PTX_CACHE_DIR", default))

    def assemble(name: str) -> bytes:
        cubin: bytes = _compile_several(directory, f"{name}-*.cubin", partial(wrapped, name))
        return cubin

    return assemble(*args, **kwargs)


@verifier("b12x.loader._native:_build()", why=_EXISTS, issue=f"{_NEWER}/experimental/b12x/loader/_native.py#L104")
@verifier(
    "b12x.loader._gds_native:_load()", why=_EXISTS, issue=f"{_NEWER}/experimental/b12x/loader/_gds_native.py#L188"
)
def build_loader(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """_build of b12x's loader, and _load of that for GPUDirect: what is imported is verified. Raises as above."""
    cache = Path(config.get_environment().get("XDG_CACHE_HOME", Path.home() / ".cache"))
    before = {
        str(path): cute_dsl.identify_file(str(path)) for path in cache.glob("b12x/*/*/*.so") if _settle_file(str(path))
    }
    made = wrapped()
    path = str(getattr(made, "__file__", made))  # others may appear meanwhile
    _attest_if_new(path, before.get(path))
    return made


@verifier(f"{_KDA}.try_load(self)", why=_EXISTS, issue=f"{_ROOT}/kda_kernels/tirx/cache.py#L112")
def load_kda(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """_KdaTirxSpec.try_load: the library is verified, and lies where nobody else can write from now on.

    Raises EntryRefusedError in strict mode, and Immovable for one that cannot be quarantined.
    """
    directory = cute_dsl.find_reachable_path(instance.path.parent)
    instance.path, instance.meta_path = directory / instance.path.name, directory / instance.meta_path.name
    _settle_file(str(instance.path))
    return wrapped()


@verifier(f"{_KDA}.build(self)", why=_EXISTS, issue=f"{_ROOT}/kda_kernels/tirx/cache.py#L123")
def build_kda(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """_KdaTirxSpec.build: the library is attested. Raises as _compile_once() does."""
    _compile_once(str(instance.path), wrapped)


@verifier(
    "b12x.comm.roce._proxy:_build()",
    why=_EXISTS,
    issue=f"{_ROOT}/experimental/b12x/comm/roce/_proxy.py#L63",
)
def build_proxy(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Path:
    """_build of the RoCE proxy, which ctypes opens: the library is verified. Raises as _compile_once() does."""
    module = sys.modules["b12x.comm.roce._proxy"]
    directory = cute_dsl.find_reachable_path(module._cache_dir())
    name = f"roce_proxy-{hashlib.sha256(module._SOURCE.read_bytes()).hexdigest()[:16]}.so"
    with _replacing.now, mock.patch.object(module, "_cache_dir", lambda: directory):
        return Path(_compile_once(str(directory / name), wrapped))


@verifier(
    f"{_BSA}.__init__(self, cache_path)",
    why="FlashInfer loads libraries from a directory below /tmp, which another user can create first.",
    issue=f"{_ROOT}/cute_dsl/sparse/bsa_utils/cache_utils.py#L201",
)
def init_sparse(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """JITPersistentCache.__init__: in a directory of this process alone if others can write there."""

    def init(cache_path: Path) -> None:
        wrapped(cute_dsl.find_reachable_path(cache_path))

    init(*args, **kwargs)


@verifier(
    f"{_BSA}._try_load_from_storage(self, key)",
    why=_EXISTS,
    issue=f"{_ROOT}/cute_dsl/sparse/bsa_utils/cache_utils.py#L222",
)
def load_sparse(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> bool:
    """JITPersistentCache._try_load_from_storage: the library is verified. Raises as load_kda() does."""

    def load(key: Any) -> bool:
        _settle_file(_find_library(instance, key))
        return bool(wrapped(key))

    return load(*args, **kwargs)


@verifier(
    f"{_BSA}._try_export_to_storage(self, key, fn)",
    why="FlashInfer links a library in place, so that one whose linker was killed is loaded for ever.",
    issue=f"{_ROOT}/cute_dsl/sparse/bsa_utils/cache_utils.py#L247",
)
def keep_sparse(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """JITPersistentCache._try_export_to_storage: the library is attested. Raises as _compile_once() does."""

    def keep(key: Any, fn: Any) -> None:
        _compile_once(_find_library(instance, key), partial(wrapped, key, fn))

    keep(*args, **kwargs)


def _find_library(cache: Any, key: Any) -> str:
    return str(cache.cache_path / f"{cache._key_to_hash(key)}.so")


_OBJECT = "FlashInfer loads whatever object lies in its workspace if a text beside it states the same versions."


@verifier(
    "flashinfer.jit.cute_dsl_core:JitSpecCuteDsl.__init__(self, module_name, kernel_name, compile_fn, source_sha256)",
    "self, module_name, kernel_name, compile_fn, source_sha256, *enable_tvm_ffi=",  # 0.7.4
    why="FlashInfer takes objects from its workspace without asking who else can write there.",
    issue=f"{_SOURCE}/cute_dsl_core.py#L90",
)
def cute_init(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """JitSpecCuteDsl.__init__: its module's directory is one of this process alone if others can write there."""
    wrapped(*args, **kwargs)
    _move_spec(instance, cute_dsl.find_reachable_path(instance.module_dir))


def _move_spec(spec: Any, directory: Path) -> None:
    spec.module_dir, spec.object_path = directory, directory / spec.object_path.name


@verifier(
    "flashinfer.jit.cute_dsl_core:JitSpecCuteDsl.try_load(self)",
    why=_OBJECT,
    issue=f"{_SOURCE}/cute_dsl_core.py#L145",
)
@verifier(
    "flashinfer.jit.cute_dsl_core:JitSpecCuteDsl.load(self)",
    why=_OBJECT,
    issue=f"{_SOURCE}/cute_dsl_core.py#L217",
)
def cute_load(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """JitSpecCuteDsl.try_load and load: an object that nothing attests is quarantined, and a kept one copied there.

    None is copied to where FlashInfer would then take other objects, of older sources, for current. Where it cannot be
    quarantined, the module goes to a directory of this process.
    """
    module, path, meta = instance.module_dir, str(instance.object_path), instance.meta_path
    expected = json.dumps(instance.expected_meta, indent=2)
    is_current = not module.exists() or sources.read_unverified_text(str(meta)) == expected
    try:
        if not is_current:
            sources.settle_side_file(path, str(module))
        elif cute_dsl.settle_object(path, _make_key(instance)) and not meta.exists():
            entry_files.publish(str(meta), expected.encode(), str(module))
    except Immovable:
        _move_spec(instance, Path(sources.replace_cache(str(module))))
    return wrapped(*args, **kwargs)


def _make_key(spec: Any) -> str:
    return json.dumps(["flashinfer", spec.module_dir_name, spec.kernel_name, spec.symbol, spec.expected_meta])


@verifier(
    "flashinfer.jit.cute_dsl_core:JitSpecCuteDsl.build(self)",
    why="FlashInfer compiles what its workspace lacks without a word, also in an image that was to have it all.",
    issue=f"{_SOURCE}/cute_dsl_core.py#L161",
)
def cute_build(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """JitSpecCuteDsl.build: a MissError where SAFECACHE_STRICT=misses=1 forbids compiling."""
    kept_code.forbid_miss(f"the object {instance.object_path}")
    wrapped(*args, **kwargs)


@verifier(
    "flashinfer.jit.cute_dsl_core:JitSpecCuteDsl._export(self)",
    why="FlashInfer publishes a compiled object without a digest, so no later process can verify it.",
    issue=f"{_SOURCE}/cute_dsl_core.py#L249",
)
def cute_export(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """JitSpecCuteDsl._export: attests the object."""
    path = str(instance.object_path)
    before = cute_dsl.identify_file(path)
    wrapped(*args, **kwargs)
    cute_dsl.attest_if_new(path, before, _make_key(instance))
