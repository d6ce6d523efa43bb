"""Features: the one module that names them, adds their units to the table, and plugs them into the core's ports.

Without a feature's folder, and the lines here that name it, everything else works as well.
"""

from __future__ import annotations

from safecache.patching import units
from safecache.patching.units import Unit
from safecache.settings import config

TYPE_CHECKING = False
if TYPE_CHECKING:
    from safecache.settings.config import Config

__all__ = ["declare", "plug"]


def declare() -> None:
    """Add the units of features to the table, and have features started when the hooks are turned on."""
    units.add(_UNITS, _start_features)


def _start_features(settings: Config) -> None:
    if settings.metrics:
        from safecache import metrics

        metrics.start()
    # A compile worker asks for nothing, and its parent has told.
    if settings.remote is not None and not config.is_compile_worker():
        from safecache.remote import extras

        extras.report(settings.remote)


def plug() -> None:
    """Connect the features to the core's events and its Plugs. The import of safecache.integrations calls it."""
    from safecache import crash_guard, explain, fingerprints, history, packs, ports, recompile_check, single_flight
    from safecache.isolation import dispatch
    from safecache.ports import observe, plugs
    from safecache.remote import tier
    from safecache.upkeep import limits

    history.observe()
    observe(ports.Admitted, crash_guard.add_file)
    observe(ports.Compiling, fingerprints.note_compile)
    observe(ports.Compiling, explain.note_compile)
    observe(ports.Published, limits.keep)
    observe(ports.Requested, tier.record_request)
    observe(ports.Served, fingerprints.note_model)
    plugs.stats = history.collect_stats
    plugs.why_missed = explain.find_miss_reason
    plugs.compile_seconds = explain.find_compile_seconds
    plugs.key_part = fingerprints
    plugs.load_guard = crash_guard
    plugs.single_flight = single_flight
    plugs.compiler = dispatch
    plugs.hit_check = recompile_check
    plugs.acquire_lease = tier.acquire_lease
    plugs.tiers.add(packs)
    plugs.tiers.add(tier)


_HEURISTICS = "torch._inductor.runtime.triton_heuristics"

_UNITS = (
    Unit(
        "explain",
        {"explain": ("torch._functorch._aot_autograd.autograd_cache",)},
        "It cannot be told which part of a key has changed.",
        package="safecache",
    ),
    Unit(
        "custom_operators",
        {"fingerprints.operators": ("torch.library",)},
        "A graph is found in the cache although the code of a custom operator in it has changed.",
        package="safecache",
    ),
    Unit(
        "crash_guard",
        {"crash_guard": ("torch._inductor.output_code", "triton.runtime.jit")},
        "What a process has died of is loaded again by the next one.",
        package="safecache",
    ),
    Unit(
        "single_flight_tuning",
        {
            "single_flight.tuning": (
                _HEURISTICS,
                "torch._inductor.runtime.benchmarking",
                "torch._inductor.select_algorithm",
            ),
        },
        "Processes that tune at once measure each other.",
        package="safecache",
    ),
    Unit(
        "remote_caches",
        {"remote.hooks": ("torch._inductor.remote_cache", "triton.runtime.cache")},
        "The Redis caches of torch and Triton have no time limits, and an error of theirs ends the compile.",
        package="safecache",
    ),
    Unit(
        "isolation",
        {"isolation.dispatch": ("triton.runtime.autotuner",)},
        "A configuration whose compile crashes ends the tuning.",
        needs=("triton",),
        package="safecache",
    ),
)
