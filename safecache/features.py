"""The features: the one module that names them, adds their hooks to the table, and plugs them into the core's ports.

Each has one row. Without its row, and its folder, the rest works as well.
"""

from __future__ import annotations

from safecache.patching import activation, targets
from safecache.patching.targets import TORCH_FROM, Target
from safecache.settings import config

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
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
_AUTOTUNER = "triton.runtime.autotuner"
_REDIS = "RedisRemoteCacheBackend.__init__"


class _Feature:
    """``plug``: plugs it into the core's ports. ``targets``: what is patched for it alone.

    ``start``: called with the settings each time that the hooks are turned on.
    """

    def __init__(
        self,
        name: str,
        plug: Callable[[], None] = lambda: None,
        *targets: Target,
        start: Callable[[Config], None] = lambda _: None,
    ) -> None:
        self.name, self.plug, self.targets, self.start = name, plug, targets, start


def declare() -> None:
    """Add what is patched for features to the table, and have them started when the hooks are turned on."""
    for feature in _FEATURES:
        targets.add(feature.targets)
        activation.call_at_start(feature.start)


def plug() -> None:
    """Have the features hear and answer the core from now on."""
    for feature in _FEATURES:
        feature.plug()


def _plug_history() -> None:
    from safecache.history import lookups
    from safecache.ports import plugs

    lookups.observe()
    plugs.stats = lookups.stats


def _plug_explain() -> None:
    from safecache.explain import torch_keys
    from safecache.ports import Compiling, observe, plugs

    observe(Compiling, torch_keys.note_compile)
    plugs.why_missed, plugs.compile_seconds = _why_missed, _compile_seconds


# What explains a miss is imported at a miss: a process that hits needs none of it.


def _why_missed(ref: Ref, name: str) -> Reason:
    from safecache.explain import key_records
    from safecache.reporting.kinds import Reason

    return Reason[key_records.why_absent(ref, name).name]


def _compile_seconds(ref: Ref, name: str) -> float:
    from safecache.explain import key_records

    record = key_records.recall(ref, name)
    return record.took if record is not None else 0.0


def _start_metrics(settings: Config) -> None:
    if settings.metrics:
        from safecache import metrics

        metrics.start()


def _plug_limits() -> None:
    from safecache.ports import Published, observe
    from safecache.upkeep import limits

    observe(Published, limits.keep)


def _plug_omitted() -> None:
    from safecache.omitted import fingerprints, surroundings
    from safecache.ports import Compiling, Served, observe, plugs

    observe(Compiling, fingerprints.note_compile)
    observe(Served, surroundings.note_model)
    plugs.key_part = fingerprints


def _plug_trials() -> None:
    from safecache.ports import Admitted, observe, plugs
    from safecache.trials import first_runs

    observe(Admitted, first_runs.add_file_to_trial)
    plugs.load_guard = first_runs


def _plug_flights() -> None:
    from safecache.flights import scopes
    from safecache.ports import plugs

    plugs.single_flight = scopes


def _plug_packs() -> None:
    from safecache.packs import lower
    from safecache.ports import plugs

    plugs.tiers.add(lower.PACKS)


def _plug_remote() -> None:
    from safecache.ports import Requested, observe, plugs
    from safecache.remote import tier

    observe(Requested, tier.record_request)
    plugs.tiers.add(tier)


def _start_remote(settings: Config) -> None:
    # A compile worker asks for nothing, and its parent has told.
    if settings.remote is not None and not config.is_compile_worker():
        from safecache.remote import extras

        extras.report(settings.remote)


def _plug_isolation() -> None:
    from safecache.isolation import asked
    from safecache.ports import plugs

    plugs.compiler = asked


def _plug_verification() -> None:
    from safecache.ports import plugs

    plugs.check_hits = _check_hits


def _check_hits(*call: Any) -> AbstractContextManager[None]:
    if not config.current().verify:
        from contextlib import nullcontext

        return nullcontext()
    from safecache.verification import sampling

    return sampling.sampling(*call)


_FEATURES = (
    _Feature("history", _plug_history),
    _Feature(
        "explain",
        _plug_explain,
        Target(
            "torch._functorch._aot_autograd.autograd_cache",
            "AOTAutogradCachePickler.get_hash",  # from FxGraphCachePickler
            "explain.hooks:get_hash",
            ("self, obj",),
            since=(2, 12),  # torch 2.11 prints the parts of each key by itself
        ),
    ),
    _Feature("metrics", start=_start_metrics),
    _Feature("limits", _plug_limits),
    _Feature(
        "omitted",
        _plug_omitted,
        Target(
            "torch.library",
            "Library.impl",
            "omitted.hooks:note_implementation",
            ("self, op_name, fn, dispatch_key=, *with_keyset=, *allow_override=",),
        ),
    ),
    _Feature(
        "trials",
        _plug_trials,
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
    ),
    _Feature(
        "flights",
        _plug_flights,
        Target(_HEURISTICS, "CachingAutotuner._precompile_worker", "flights.hooks:precompile_worker", ("self",)),
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
                        "self, _callable, warmup=, rep=, estimation_iters=, memory_warmup_iters=, "
                        "max_benchmark_duration=, return_mode=, grad_to_none=, device_type=, kwargs",
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
    ),
    _Feature("packs", _plug_packs),
    _Feature(
        "remote",
        _plug_remote,
        Target("torch._inductor.remote_cache", _REDIS, "remote.hooks:init_torch_redis", ("self, cache_id",)),
        Target("triton.runtime.cache", _REDIS, "remote.hooks:init_triton_redis", ("self, key",)),
        start=_start_remote,
    ),
    _Feature(
        "isolation",
        _plug_isolation,
        Target(_AUTOTUNER, "Autotuner.prune_configs", "isolation.hooks:prune_configs", ("self, kwargs",)),
        Target(_AUTOTUNER, "Autotuner._bench", "isolation.hooks:bench", ("self, args, *config, meta",)),
    ),
    _Feature("verification", _plug_verification),
)
