"""The features: the one module that names them, adds their hooks to the table, and plugs them into the core's ports."""

from __future__ import annotations

from safecache.patching import activation, targets
from safecache.patching.targets import TORCH_FROM, Target
from safecache.settings import config

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from typing import Any

    from safecache.places.refs import Ref
    from safecache.reporting.kinds import Reason
    from safecache.settings.config import Config

__all__ = ["declare", "plug"]

_HEURISTICS = "torch._inductor.runtime.triton_heuristics"
_BENCHMARKING = "torch._inductor.runtime.benchmarking"
_BENCHMARK_GPU = (
    "self, _callable, estimation_iters=, memory_warmup_iters=, benchmark_iters=, max_benchmark_duration=, "
    "return_mode=, grad_to_none="
)

_TARGETS = (
    Target(
        "torch._inductor.output_code",
        "CompiledFxGraph.post_compile",
        "trials.hooks:watch_graph",
        ("self, example_inputs, constants, graph_kwargs",),
    ),
    Target(
        "triton.runtime.jit",
        "JITFunction._do_compile",
        "trials.hooks:watch_kernel",
        ("self, key, signature, device, constexprs, options, attrs, warmup",),
    ),
    Target(
        "torch._functorch._aot_autograd.autograd_cache",
        "AOTAutogradCachePickler.get_hash",  # from FxGraphCachePickler
        "explain.hooks:get_hash",
        ("self, obj",),
        since=(2, 12),  # torch 2.11 prints the parts of each key by itself
    ),
    Target(
        "torch.library",
        "Library.impl",
        "omitted.hooks:note_implementation",
        ("self, op_name, fn, dispatch_key=, *with_keyset=, *allow_override=",),
    ),
    Target(
        _HEURISTICS,
        "CachingAutotuner._precompile_worker",
        "flights.hooks:precompile_worker",
        ("self",),
    ),
    Target(
        _HEURISTICS,
        "CachingAutotuner._precompile_config",
        "flights.hooks:precompile_config",
        ("self, cfg", "self, cfg, *cc_override="),  # to 2.13
    ),
    Target(
        "torch._inductor.select_algorithm",
        "AlgorithmSelectorCache.make_precompile_fn",
        "flights.hooks:make_precompile_fn",
        (
            "self, choices, name, inputs_key, precompilation_timeout_seconds=",  # to 2.14
            "self, choices, name, inputs_key, benchmark_inputs_key=, precompilation_timeout_seconds=",
        ),
    ),
    *(
        Target(_BENCHMARKING, f"{each}.benchmark_gpu", "flights.hooks:measure", signatures, since=since)
        for each, since, signatures in (
            ("TritonBenchmarker", TORCH_FROM, ("self, _callable, is_vetted_benchmarking=, kwargs",)),
            (
                "InductorBenchmarker",
                TORCH_FROM,
                (
                    f"{_BENCHMARK_GPU}, is_vetted_benchmarking=, kwargs",  # to 2.12
                    f"{_BENCHMARK_GPU}, is_vetted_benchmarking=, device_type=, kwargs",
                ),
            ),
            (
                "TorchProfilerBenchmarker",
                (2, 13),
                (
                    "self, _callable, warmup=, rep=, estimation_iters=, memory_warmup_iters=, max_benchmark_duration=, "
                    "return_mode=, grad_to_none=, device_type=, kwargs",
                ),
            ),
        )
    ),
    Target(
        _BENCHMARKING,
        "Benchmarker.benchmark_gpu_with_cuda_graph",
        "flights.hooks:measure",
        (
            "self, _callable, kwargs",  # to 2.13
            "self, _callable, grad_to_none=, kwargs",  # 2.14
            "self, _callable, grad_to_none=, cudagraph_unroll=, kwargs",
        ),
        since=(2, 12),
    ),
    Target(
        "torch._inductor.remote_cache",
        "RedisRemoteCacheBackend.__init__",
        "remote.hooks:init_torch_redis",
        ("self, cache_id",),
    ),
    Target(
        "triton.runtime.cache", "RedisRemoteCacheBackend.__init__", "remote.hooks:init_triton_redis", ("self, key",)
    ),
    Target("triton.runtime.autotuner", "Autotuner.prune_configs", "isolation.hooks:prune_configs", ("self, kwargs",)),
    Target("triton.runtime.autotuner", "Autotuner._bench", "isolation.hooks:bench", ("self, args, *config, meta",)),
)


def declare() -> None:
    """Add what is patched for one feature alone to the table, and have them started when the hooks are turned on."""
    targets.add(_TARGETS)
    activation.call_at_start(_start)


def _start(settings: Config) -> None:
    if settings.metrics:
        from safecache import metrics

        metrics.start()
    # A compile worker asks for nothing, and its parent has told.
    if settings.remote is not None and not config.is_compile_worker():
        from safecache.remote import extras

        extras.report(settings.remote)


def plug() -> None:
    """Have the features hear and answer the core from now on."""
    from safecache import ports
    from safecache.explain import torch_keys
    from safecache.flights import scopes
    from safecache.history import lookups
    from safecache.isolation import asked
    from safecache.omitted import fingerprints, surroundings
    from safecache.ports import plugs
    from safecache.remote import tier
    from safecache.trials import first_runs
    from safecache.upkeep import limits

    lookups.observe()
    ports.observe(ports.Published, limits.keep)
    ports.observe(ports.Admitted, first_runs.add_file_to_trial)
    ports.observe(ports.Compiling, fingerprints.note_compile)
    ports.observe(ports.Compiling, torch_keys.note_compile)
    ports.observe(ports.Requested, tier.record_request)
    ports.observe(ports.Served, surroundings.note_model)
    plugs.why_missed = _why_missed
    plugs.compile_seconds = _compile_seconds
    plugs.check_hits = _check_hits
    plugs.tier = tier
    plugs.compiler = asked
    plugs.key_part = fingerprints
    plugs.load_guard = first_runs
    plugs.single_flight = scopes


# What explains a miss is imported at a miss: a process that hits needs none of it.


def _why_missed(ref: Ref, name: str) -> Reason:
    from safecache.explain import key_records
    from safecache.reporting.kinds import Reason

    return Reason[key_records.why_absent(ref, name).name]


def _compile_seconds(ref: Ref, name: str) -> float:
    from safecache.explain import key_records

    record = key_records.recall(ref, name)
    return record.took if record is not None else 0.0


def _check_hits(*call: Any) -> AbstractContextManager[None]:
    if not config.current().verify:
        from contextlib import nullcontext

        return nullcontext()
    from safecache.verification import sampling

    return sampling.sampling(*call)
