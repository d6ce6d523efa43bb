"""The features: the one module that names them, adds their hooks to the table, and plugs them into the core's ports.

Without its folder, and the lines here that name it, all else works as well.
"""

from __future__ import annotations

from safecache.patching import targets
from safecache.patching.targets import TORCH_FROM, Target
from safecache.settings import config

TYPE_CHECKING = False
if TYPE_CHECKING:
    from safecache.settings.config import Config

__all__ = ["declare", "plug"]


def declare() -> None:
    """Add what is patched for one feature alone to the table, and have them started when the hooks are turned on."""
    targets.add(_TARGETS, _start)


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
    from safecache import packs, ports, verification
    from safecache.explain import torch_keys
    from safecache.flights import scopes
    from safecache.history import lookups
    from safecache.isolation import asked
    from safecache.omitted import fingerprints, surroundings
    from safecache.ports import observe, plugs
    from safecache.remote import tier
    from safecache.trials import first_runs
    from safecache.upkeep import limits

    lookups.observe()
    observe(ports.Admitted, first_runs.add_file)
    observe(ports.Compiling, fingerprints.note_compile)
    observe(ports.Compiling, torch_keys.note_compile)
    observe(ports.Published, limits.keep)
    observe(ports.Requested, tier.record_request)
    observe(ports.Served, surroundings.note_model)
    plugs.stats = lookups.stats
    plugs.why_missed = torch_keys.why_missed
    plugs.compile_seconds = torch_keys.compile_seconds
    plugs.key_part = fingerprints
    plugs.load_guard = first_runs
    plugs.single_flight = scopes
    plugs.compiler = asked
    plugs.check_hits = verification.check_hits
    plugs.acquire_lease = tier.acquire_lease
    plugs.tiers.add(packs)
    plugs.tiers.add(tier)


_HEURISTICS = "torch._inductor.runtime.triton_heuristics"
_BENCHMARKING = "torch._inductor.runtime.benchmarking"
_BENCHMARK_GPU = (
    "self, _callable, estimation_iters=, memory_warmup_iters=, benchmark_iters=, max_benchmark_duration=, "
    "return_mode=, grad_to_none="
)
_AUTOTUNER = "triton.runtime.autotuner"
_REDIS = "RedisRemoteCacheBackend.__init__"

_TARGETS = (
    Target(
        "torch._functorch._aot_autograd.autograd_cache",
        "AOTAutogradCachePickler.get_hash",  # from FxGraphCachePickler
        "explain.torch_keys:get_hash",
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
        "torch._inductor.output_code",
        "CompiledFxGraph.post_compile",
        "trials.first_runs:watch_graph",
        ("self, example_inputs, constants, graph_kwargs",),
    ),
    Target(
        "triton.runtime.jit",
        "JITFunction._do_compile",
        "trials.first_runs:watch_kernel",
        ("self, key, signature, device, constexprs, options, attrs, warmup",),
    ),
    Target(_HEURISTICS, "CachingAutotuner._precompile_worker", "flights.tuning:precompile_worker", ("self",)),
    Target(
        _HEURISTICS,
        "CachingAutotuner._precompile_config",
        "flights.tuning:precompile_config",
        ("self, cfg", "self, cfg, *cc_override="),  # to 2.13
    ),
    Target(
        "torch._inductor.select_algorithm",
        "AlgorithmSelectorCache.make_precompile_fn",
        "flights.tuning:make_precompile_fn",
        (
            "self, choices, name, inputs_key, precompilation_timeout_seconds=",  # to 2.14
            "self, choices, name, inputs_key, benchmark_inputs_key=, precompilation_timeout_seconds=",
        ),
    ),
    *(
        Target(_BENCHMARKING, f"{each}.benchmark_gpu", "flights.tuning:measure", signatures, since=since)
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
                    "self, _callable, warmup=, rep=, estimation_iters=, memory_warmup_iters=, "
                    "max_benchmark_duration=, return_mode=, grad_to_none=, device_type=, kwargs",
                ),
            ),
        )
    ),
    Target(
        _BENCHMARKING,
        "Benchmarker.benchmark_gpu_with_cuda_graph",
        "flights.tuning:measure",
        (
            "self, _callable, kwargs",  # to 2.13
            "self, _callable, grad_to_none=, kwargs",  # 2.14
            "self, _callable, grad_to_none=, cudagraph_unroll=, kwargs",
        ),
        since=(2, 12),
    ),
    Target("torch._inductor.remote_cache", _REDIS, "remote.hooks:init_torch_redis", ("self, cache_id",)),
    Target("triton.runtime.cache", _REDIS, "remote.hooks:init_triton_redis", ("self, key",)),
    Target(_AUTOTUNER, "Autotuner.prune_configs", "isolation.asked:prune_configs", ("self, kwargs",)),
    Target(_AUTOTUNER, "Autotuner._bench", "isolation.asked:bench", ("self, args, *config, meta",)),
)
