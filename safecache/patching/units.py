"""Units: hooks that are on or off together, for one upstream package or one part of it.

The table has what has to be known before the hooks are imported, which come with the modules that they are on.
"""

from __future__ import annotations

from safecache.errors import ConfigError

__all__ = ["GROUP", "STARTS", "UNITS", "Unit", "add", "add_installed", "check_disabled", "list_modules"]

# Not imported from typing, as in safecache/__init__.py.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from safecache.settings.config import Config

# Of the entry points by which other packages add theirs.
GROUP = "safecache.units"


class Unit:
    """Hooks that are on or off together, under the ``name`` that status(), doctor and SAFECACHE_DISABLE use.

    ``modules``: those with hooks, relative to ``package``, each with the upstream modules that its hooks are on.
    ``lost``: a sentence on what works as in stock torch without the unit. ``needs``: units without which this unit does
    harm.
    """

    def __init__(
        self,
        name: str,
        modules: Mapping[str, tuple[str, ...]],
        lost: str,
        needs: tuple[str, ...] = (),
        package: str = "safecache.integrations",
    ) -> None:
        self.name = name
        self.modules = {f"{package}.{module}": targets for module, targets in modules.items()}
        self.lost = lost
        self.needs = needs


_INDUCTOR = "torch._inductor"

UNITS = [
    Unit(
        "inductor",
        {
            "codecache": (f"{_INDUCTOR}.codecache", f"{_INDUCTOR}.compile_fx"),
            "compile_scopes": (
                f"{_INDUCTOR}.compile_fx",
                "torch._dynamo.convert_frame",
                "torch._functorch._aot_autograd.graph_compile",
            ),
            "installation": (f"{_INDUCTOR}.codecache", f"{_INDUCTOR}.runtime.cache_dir_utils", "triton.runtime.cache"),
            "generated_code": (f"{_INDUCTOR}.codecache", f"{_INDUCTOR}.cpp_builder", f"{_INDUCTOR}.output_code"),
            "cpp_codecache": (f"{_INDUCTOR}.codecache", f"{_INDUCTOR}.cpp_builder", f"{_INDUCTOR}.cpu_vec_isa"),
            "async_compile": (f"{_INDUCTOR}.async_compile", f"{_INDUCTOR}.compile_worker.subproc_pool"),
            "locks": ("torch.utils._filelock", "torch.utils.file_baton"),
            "compiler_bisector": (f"{_INDUCTOR}.compiler_bisector",),
            "pickle_module": (f"{_INDUCTOR}.codecache", "torch._functorch._aot_autograd.autograd_cache"),
            "autograd_cache": (
                "torch._functorch._aot_autograd.autograd_cache",
                "torch._functorch._aot_autograd.aot_autograd_result",
                "torch._functorch.aot_autograd",
            ),
        },
        "Entries of Inductor and AOTAutograd, generated code and libraries are used unverified.",
    ),
    Unit(
        "autotune_cache",
        {"autotune_cache": (f"{_INDUCTOR}.codecache", f"{_INDUCTOR}.runtime.autotune_cache")},
        "Results of tuning are used unverified.",
        needs=("inductor",),
    ),
    Unit(
        "dynamo",
        {
            "dynamo": (
                "torch._dynamo.aot_compile",
                "torch._dynamo.aot_compile_types",
                "torch._dynamo.package",
                "torch._dynamo.pgo",
            ),
            "precompile": ("torch._precompile",),
        },
        "Models compiled ahead of time, packages and profiles of Dynamo are unpickled unverified.",
        needs=("inductor",),
    ),
    Unit(
        "artifacts",
        {
            "compiler_cache": ("torch.compiler", "torch.compiler._cache"),
            "standalone_compile": (f"{_INDUCTOR}.standalone_compile", f"{_INDUCTOR}.runtime.caching.implementations"),
        },
        "Mega-caches, and artifacts of standalone_compile, are loaded unverified.",
        needs=("inductor",),
    ),
    Unit(
        "aot_inductor",
        {
            "aot_inductor": (
                f"{_INDUCTOR}.aoti_eager",
                f"{_INDUCTOR}.codecache",
                f"{_INDUCTOR}.package",
                "torch.export.pt2_archive._package",
            ),
            "output_code": ("torch._export", f"{_INDUCTOR}.output_code"),
        },
        "Libraries of AOTInductor, and packages of them, are loaded unverified.",
        needs=("inductor", "export"),
    ),
    Unit(
        "export",
        {
            "exported": (
                "torch._export.serde.serialize",
                "torch.export",
                "torch.export.pt2_archive._package",
                "torch.utils._pytree",
            ),
        },
        "Archives of torch.export are unpickled unverified.",
    ),
    Unit(
        "cpp_extension",
        {"cpp_extension": ("torch.cuda.memory", "torch.utils.cpp_extension")},
        "Extensions that torch builds are loaded unverified.",
        needs=("inductor",),
    ),
    Unit(
        "triton",
        {
            "triton_cache": ("triton.runtime.cache",),
            "triton_runtime": (
                "triton",
                "triton.compiler",
                "triton.compiler.compiler",
                "triton.runtime.build",
                "torch.utils._triton",
            ),
        },
        "Kernels in Triton's cache are loaded unverified.",
    ),
    Unit(
        "triton_in_inductor",
        {"triton_in_inductor": (f"{_INDUCTOR}.runtime.triton_heuristics", f"{_INDUCTOR}.triton_bundler")},
        "A graph whose launchers do not pickle is not saved, and kernels in entries are written unverified.",
        needs=("inductor", "triton"),
    ),
    Unit(
        "halide",
        {"halide": (f"{_INDUCTOR}.codecache",)},
        "Libraries of Halide are loaded unverified.",
        needs=("inductor",),
    ),
    Unit(
        "cutlass",
        {"cutlass": (f"{_INDUCTOR}.codegen.cutlass.cache", f"{_INDUCTOR}.codegen.cutlass.utils")},
        "Operations of CUTLASS, and modules beside its links in the cache, are used unverified.",
        needs=("inductor",),
    ),
    Unit(
        "cute_dsl",
        {
            "cute_dsl": (
                f"{_INDUCTOR}.runtime.cutedsl_cache",
                "cutlass.base_dsl.cache_helpers",
                "cutlass.base_dsl.export.external_binary_module",
            ),
        },
        "Objects of CuTe DSL are loaded unverified.",
    ),
    Unit("flydsl", {"flydsl": (f"{_INDUCTOR}.runtime.flydsl_cache",)}, "FlyDSL's cache is read unverified."),
    Unit(
        "quack",
        {
            "quack": (
                *("torch._vendor.quack.cache.jit", "torch._vendor.quack.cache.async_compile"),
                *("quack.cache.jit", "quack.cache.async_compile"),
            ),
        },
        "Objects of QuACK are loaded unverified.",
    ),
    Unit(
        "tvm_ffi",
        {"tvm_ffi": ("tvm_ffi.cpp.extension", "tvm_ffi.module", "tvm_ffi.utils.lockfile")},
        "Libraries that tvm_ffi builds are loaded unverified, and its locks are waited for without end.",
    ),
    Unit(
        "flashinfer",
        {
            "flashinfer": (
                "flashinfer.cute_dsl.sparse.bsa_utils.cache_utils",
                "b12x.comm.roce._proxy",
                *("b12x.loader._native", "b12x.loader._gds_native"),
                "flashinfer.jit.alphamoe_nvrtc",
                "flashinfer.jit.cake_gdn",
                "flashinfer.jit.core",
                "flashinfer.jit.cpp_ext",
                "flashinfer.jit.cubin_loader",
                "flashinfer.jit.cute_dsl_core",
                "flashinfer.jit.env",
                *("flashinfer.kda_kernels.tirx.cache", "flashinfer.kda_kernels.ptx.static_runtime"),
            ),
        },
        "Libraries and objects that FlashInfer compiles are loaded unverified.",
        needs=("tvm_ffi",),
    ),
    Unit(
        "deep_gemm",
        {
            "deep_gemm": (
                "deep_gemm.cuda_helpers",
                "vllm.utils.deep_gemm",
                "sglang.srt.layers.deep_gemm_wrapper.compile_utils",
            ),
        },
        "DeepGEMM's kernels are loaded unverified.",
    ),
    Unit(
        "tilelang",
        {
            "tilelang": (
                *("tilelang.cache.kernel_cache", "tilelang.cache.binary_cache", "tilelang.autotuner.param"),
                "tilelang.jit.adapter.cutedsl.adapter",
            ),
        },
        "TileLang's kernels are loaded unverified, and functions in its cache unpickled.",
    ),
    Unit(
        "vllm",
        {
            "vllm": (
                "vllm.compilation.backends",
                "vllm.compilation.caching",
                "vllm.compilation.decorators",
                "vllm.model_executor.models.registry",
            ),
        },
        "vLLM's tables are evaluated unverified, and its artifacts are neither shared nor recompiled where refused.",
        needs=("artifacts", "dynamo"),
    ),
    Unit(
        "sglang",
        {
            "sglang": (
                "sglang.srt.compilation.backend",
                "sglang.kernels.jit.cute_aot_cache",
                *(f"sglang.kernels.jit.utils.compile.{name}" for name in ("cache", "loader", "ninja")),
            ),
        },
        "SGLang's tables, libraries and objects of CuTe DSL are used unverified.",
        needs=("inductor",),
    ),
]
# Called with the settings each time that the hooks are turned on.
STARTS: list[Callable[[Config], None]] = []


def add(units: Iterable[Unit], start: Callable[[Config], None]) -> None:
    """Add ``units`` to the table, and have each later activate() call ``start`` with the settings."""
    STARTS.append(start)
    UNITS.extend(units)


def add_installed() -> dict[str, Exception]:
    """Add the units that installed packages have under GROUP. Return the error of each that does not load, by name."""
    from importlib.metadata import entry_points

    failed = {}
    known = {unit.name for unit in UNITS}
    for point in entry_points(group=GROUP):
        if point.name in known:
            continue
        try:
            unit = point.load()
            if not isinstance(unit, Unit) or unit.name != point.name:
                raise TypeError(f"{point.value} is no safecache.patching.units.Unit of this name")
            UNITS.append(unit)
        except Exception as error:
            failed[point.name] = error
    return failed


def check_disabled(names: Collection[str]) -> None:
    """Raise ConfigError if one of ``names`` is no unit, or if a unit that stays on needs it."""
    known = {unit.name for unit in UNITS}
    if not known.issuperset(names):
        from importlib.metadata import entry_points

        known |= entry_points(group=GROUP).names
    for name in names:
        if name not in known:
            raise ConfigError(f"SAFECACHE_DISABLE={name!r} is not allowed: use units of {', '.join(sorted(known))}")
        needing = [unit.name for unit in UNITS if name in unit.needs and unit.name not in names]
        if needing:
            others = ", ".join(needing)
            raise ConfigError(f"SAFECACHE_DISABLE={name!r} is not allowed alone: use it with {others}, which need it")


def list_modules(disabled: Collection[str]) -> dict[str, list[str]]:
    """Return each upstream module to hook, with safecache's modules that have its hooks; without ``disabled`` units."""
    found: dict[str, list[str]] = {}
    for unit in UNITS:
        for module, targets in unit.modules.items() if unit.name not in disabled else ():
            for target in targets:
                found.setdefault(target, []).append(module)
    return found
