"""torch._inductor.compile_fx, torch._dynamo.convert_frame: where a compile begins and ends, with its leases."""

from __future__ import annotations

import itertools
import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from inspect import signature
from typing import Any

from safecache import compiles
from safecache.entries.searches import Search
from safecache.patching.hook import hook
from safecache.ports import plugs
from safecache.reporting import events, waits
from safecache.reporting.kinds import Kind, Reason
from safecache.session import Part, inherit

__all__ = [
    "OTHER_RANK",
    "agree_on_hit",
    "agree_on_lookup",
    "compile_backward",
    "compile_fx",
    "compile_fx_inner",
    "convert",
]

# Why a rank misses that has found what it was for.
_SAMPLED = (Reason.SAMPLED, "SAFECACHE_RECOMPILE_SAMPLE")
OTHER_RANK = (Reason.OTHER_RANK_MISSED, "all ranks compile where one does")
# A rank that has waited still has as long again to compile, before the others think that it hangs.
_SHARE = 0.5
# With it torch itself has all ranks miss in the AOTAutograd cache where one does.
_OWN_AGREEMENT = ("torch._functorch.config", "_sync_cache_decision_cross_ranks")  # from 2.15 on
# Settings with which the ranks of a group meet in collectives while they compile: none may wait for another there.
_COMPILE_COLLECTIVES = (
    ("torch._functorch.config", "_sync_decision_cross_ranks"),
    _OWN_AGREEMENT,
    ("torch._inductor.config", "distributed_max_autotune_gemm"),
    ("torch._inductor.config", "aten_distributed_optimizations.enable_overlap_scheduling"),
    ("torch._inductor.config", "reorder_for_compute_comm_overlap"),
    ("torch._inductor.config_comms", "runtime_estimations_align_across_all_distributed_ranks"),
)
# Seconds; a backend of which it is not known: that of NCCL, kProcessGroupNCCLDefaultTimeout, which is the shortest.
_SHORTEST_WATCHDOG = 600.0


@hook(
    "torch._inductor.compile_fx:compile_fx(model_, example_inputs_, inner_compile=, config_patches=, decompositions=, "
    "ignore_shape_env=)",  # 2.11
    "model_, example_inputs_, inner_compile=, config_patches=, decompositions=, ignore_shape_env=, "
    "compile_region_name=",
    why="Processes that start together all miss, and each compiles the same graphs, since torch takes no lock "
    "across a compile.",
    issue="https://github.com/pytorch/pytorch/issues/96152",
)
def compile_fx(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """compile_fx: with AOTAutograd.

    A graph that trains is saved with its backward, which torch compiles when it is called: a rank that waited for that
    could hang its group, so it does not. Processes without a group wait, see compile_backward().
    """

    def compile(model_: Any, example_inputs_: Any, *rest: Any, **named: Any) -> Any:
        trains = sys.modules["torch"].is_grad_enabled() and any(
            getattr(each, "requires_grad", False) for each in example_inputs_
        )
        with plugs.single_flight.compile_scope(Kind.AOT_ENTRY, _find_wait_limit(), trains=trains):
            return wrapped(*args, **kwargs)

    return compile(*args, **kwargs)


@hook(
    "torch._functorch._aot_autograd.graph_compile:_aot_stage2b_bw_compile(bw_module, maybe_subclass_meta, fw_metadata, "
    "fwd_output_strides, num_symints_saved_for_bw, aot_config)",  # to 2.12
    "bw_module, maybe_subclass_meta, fw_metadata, fwd_output_strides, num_symints_saved_for_bw, aot_config, "
    "bw_compiler",
    why="Torch saves a graph that trains only after its first backward, so processes that start together each trace "
    "it.",
    issue="https://github.com/pytorch/pytorch/issues/96152",
)
def compile_backward(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """_aot_stage2b_bw_compile: compiles the backward at once if another process waits for the graph.

    If that fails, torch compiles it at its first call, and raises what it raises then.
    """
    if plugs.single_flight.has_waiter():
        bound = signature(wrapped).bind(*args, **kwargs).arguments
        bound["aot_config"] = replace(bound["aot_config"], force_non_lazy_backward_lowering=True)
        with suppress(Exception):
            return wrapped(**bound)
    return wrapped(*args, **kwargs)


@hook(
    "torch._inductor.compile_fx:_compile_fx_inner(gm, example_inputs, graph_kwargs)",  # 2.11
    "gm, example_inputs, compile_region_name=, graph_kwargs",
    why="Processes that miss the same FX graph entry at once each compile it, since torch takes no lock across a "
    "compile.",
    issue="https://github.com/pytorch/pytorch/issues/96152",
)
def compile_fx_inner(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """_compile_fx_inner: of one graph."""
    graph = compiles.override_scope(graph=kwargs["gm"] if "gm" in kwargs else args[0])
    with plugs.single_flight.compile_scope(Kind.FX_ENTRY, _find_wait_limit()), graph:
        return wrapped(*args, **kwargs)


@hook(
    "torch._dynamo.convert_frame:ConvertFrame.__call__(self, frame, cache_entry, hooks, frame_state, skip=)",
    why="With suppress_errors Dynamo swallows every exception of a compile and runs the frame eagerly.",
    issue="https://github.com/pytorch/pytorch/pull/107044",
)
def convert(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """ConvertFrame.__call__: what nobody may swallow leaves it; with suppress_errors it would run the frame eagerly.

    SGLang sets that for FlashInfer's attention. Without it, such an error leaves the frame within torch's own.
    """
    from torch._dynamo import config

    def compile_frame(frame: Any, cache_entry: Any, hooks: Any, frame_state: Any, skip: int = 0) -> Any:
        # So many of the innermost frames torch leaves out of the stack in its trace log; these two are others.
        return wrapped(frame, cache_entry, hooks, frame_state, skip + 2)

    if not config.suppress_errors:
        return compile_frame(*args, **kwargs)
    with events.propagate_strict():
        return compile_frame(*args, **kwargs)


def _find_wait_limit() -> float | None:
    """The seconds that a rank may wait for another; None where ranks meet in a compile, and infinity for no rank."""
    distributed = _get_distributed()
    if distributed is None:
        return float("inf")
    return None if _has_compile_collectives() else _share_timeout(distributed)


def _find_group() -> tuple[float, int] | None:
    """Return the seconds for waits of this rank between two collectives, and how many collectives there were."""
    distributed = _get_distributed()
    if distributed is None:
        return None
    return _share_timeout(distributed), sum(map(_count_collectives, list(distributed.distributed_c10d._world.pg_map)))


def _count_collectives(group: Any) -> int:
    try:
        return int(group._get_sequence_number_for_group())
    except RuntimeError:
        return 0  # its backend does not count them


waits.set_group(_find_group)


def agree_on_lookup(
    search: Search, look: Callable[[], Any], is_hit: Callable[[Any], bool]
) -> tuple[Any, tuple[Reason, str] | None]:
    """Return what ``look`` finds; and why that is nothing, if it has found something.

    Ranks that meet in a compile agree. Raises what ``look`` does, once the others know that this one has to compile.
    """
    kind = search.ref.kind
    # What torch has recorded of each type, for who saves what was compiled or hit.
    manager = sys.modules["torch.compiler._cache"].CacheArtifactManager
    recorded = {name: len(each) for name, each in manager._new_cache_artifacts.items()}
    try:
        found = look()
    except Exception:
        _agree_on_hit(False, kind)
        raise
    hit = is_hit(found)
    # Torch's own collective would wait for ranks that do not look again.
    agrees = kind is Kind.AOT_ENTRY and _get_distributed() is not None and _is_set(_OWN_AGREEMENT)
    hidden = hit and not agrees and search.is_hidden()
    if _agree_on_hit(hit and not hidden, kind) or not hit:
        return found, None
    # A compiled artifact with two entries cannot be saved.
    for name, artifacts in manager._new_cache_artifacts.items():
        for artifact in artifacts[recorded.get(name, 0) :]:
            manager._seen_artifacts.discard(artifact)
        del artifacts[recorded.get(name, 0) :]
    with compiles.override_scope(missing=kind):
        return look(), _SAMPLED if hidden else OTHER_RANK


# Seconds for which the other ranks are waited for: longer than lookups differ, as all of them have just begun.
_MOST = 60.0
_TOO_LATE = (
    "safecache: not all ranks reached this cache lookup within {0:g} s ({1}). This process stops coordinating and uses "
    "its own cache; ranks may hang in a collective if their caches differ. Help: give every rank the same cache "
    "directory, or an empty one"
)


class _State:
    def __init__(self) -> None:
        # By the ranks that agree, the numbers of their lookups.
        self.numbers: dict[tuple[int, ...], Iterator[int]] = {}
        self.has_given_up = False


_state: Part[_State] = Part(_State, inherit)


def _agree_on_hit(hit: bool, kind: Kind) -> bool:
    """Tell what all_hit() does of all ranks, where they meet in collectives while they compile.

    Those would wait for a rank that hits, and does not come there. Stock torch may agree itself from 2.15 on, for
    AOTAutograd entries: _OWN_AGREEMENT.
    """
    distributed = _get_distributed()
    if distributed is None or not _has_compile_collectives() or (kind is Kind.AOT_ENTRY and _is_set(_OWN_AGREEMENT)):
        return hit
    return agree_on_hit(hit, range(distributed.get_world_size()))


def agree_on_hit(hit: bool, ranks: Iterable[int]) -> bool:
    """Tell whether all ``ranks`` have hit, as this one says of itself: each calls this once per lookup, in one order.

    After a rank that did not come in time, which is reported once, it is what this one says. They agree by the store
    that they have met at, since a group of its own would have to be made by all of them at once.
    """
    distributed, state, together = _get_distributed(), _state.now, tuple(ranks)
    if distributed is None or len(together) < 2 or state.has_given_up:
        return hit
    seconds = min(_MOST, _share_timeout(distributed))
    try:
        store = distributed.distributed_c10d._get_default_store()
        number = next(state.numbers.setdefault(together, itertools.count(1)))
        names = {rank: f"safecache/agreement/{together[0]}+{len(together)}/{number}/{rank}" for rank in together}
        store.set(names[distributed.get_rank()], b"hit" if hit else b"miss")
        if not hit:
            return False
        store.wait([*names.values()], timedelta(seconds=seconds))
        return all(store.get(name) == b"hit" for name in names.values())
    except Exception as error:  # of whatever store it is
        state.has_given_up = True
        events.log_line(logging.WARNING, _TOO_LATE.format(seconds, type(error).__name__))
        return hit


def _get_distributed() -> Any:
    """torch.distributed, if this process is one of several ranks."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed if distributed.get_world_size() > 1 else None


def _has_compile_collectives() -> bool:
    return any(map(_is_set, _COMPILE_COLLECTIVES))


def _is_set(place: tuple[str, str]) -> bool:
    found: Any = sys.modules.get(place[0])
    for name in place[1].split("."):
        found = getattr(found, name, False)
    return bool(found)


def _share_timeout(distributed: Any) -> float:
    """Return the seconds a rank may wait. Stages of a pipeline share them, since each stands in recv for the others."""
    is_pipeline = "torch.distributed.pipelining.stage" in sys.modules
    return _SHARE * _find_timeout_seconds(distributed) / (distributed.get_world_size() if is_pipeline else 1)


def _find_timeout_seconds(distributed: Any) -> float:
    """The shortest, in seconds, after which a backend of the default group takes a rank for hanging."""
    group = distributed.distributed_c10d._get_default_group()
    devices = getattr(group, "_device_types", ())
    limits = [getattr(group._get_backend(device).options, "_timeout", None) for device in devices]
    known = [limit.total_seconds() for limit in limits if limit is not None]
    return min(known, default=_SHORTEST_WATCHDOG)
