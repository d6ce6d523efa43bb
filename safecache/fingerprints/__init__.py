"""Fingerprint what upstream's cache keys leave out: seal it with the entry, compare it before use.

A feature: it may import the core, and no other feature. A seal names the custom ops of its graph, with what each of
them was. To compare, only those are looked at: the graph is only walked where something is compiled, and where a seal
says nothing.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar

from safecache import compiles
from safecache.fingerprints import functions, operators, sources
from safecache.places.refs import Ref
from safecache.ports import Compiling, Served
from safecache.reporting import events
from safecache.reporting.kinds import ENTRIES, Fingerprint, Kind, Reason
from safecache.reporting.report import Refusal
from safecache.session import Part, inherit
from safecache.settings import config

__all__ = [
    "FIELD",
    "PARTS",
    "KeyField",
    "build_fingerprint",
    "describe_items",
    "find_refusal",
    "fingerprint_function",
    "is_rank_dependent",
    "make_rank_row",
    "note_compile",
    "note_model",
]


# The field of a seal's provenance.
FIELD = "omitted"
_OPS, _FILES = "ops", "files"
# The keys of the graphs, of those that an entry refers to, which have none: whatever is found for these fits.
_PLAIN = "plain"
# What is sealed as it is, and not as a digest.
_SHOWN = ("schema", "tags", "rank", "speculation", "modalities")
_UNKNOWN = (
    "not all that {0} is made of can be compared: it was registered before safecache was imported, or is too large. "
    "SAFECACHE_ASSUME_UNCHANGED={0} accepts that"
)
# Rows of one part that a person would read.
_MOST = 50

_T = TypeVar("_T")

_TORCH, _VLLM = "https://github.com/pytorch/pytorch", "https://github.com/vllm-project/vllm"

# What says where something lies or runs, or what is printed. Kubernetes adds
# VLLM_SERVICE_HOST, VLLM_PORT_8000_TCP_ADDR and the like for a service of that name; vLLM marks what it has set itself.
_PLACES = re.compile(
    r"_(ADDR|ADDRESS|API|CACHE|COLOR|DEBUG|DIR|DIRECTORY|ENDPOINT|FILE|FOLDER|HOME|HOST|HOSTNAME|ID|IDENT|INTERVAL|IP|KEY|LEVEL"
    r"|LOG|LOGGING|LOGS|METRICS|NAME|NAMESPACE|NODE|PASSWORD|PATH|PID|POD|PORT|PROFILE|PROFILER|PROTO|ROOT|SECRET|SERVICE"
    r"|SET_BY_VLLM|SOCKET|STATS|TCP|TIMEOUT|TOKEN|TRACE|UDP|UID|URI|URL|USAGE|USER|UUID)(?=_|$)"
)
# Paths, addresses, times and identifiers, which servers set for their own workers.
_PLACE_VALUE = re.compile(r"[/:]|\d{5}|[0-9a-f]{16}|[0-9a-f]{8}-[0-9a-f]{4}-")
# Names by which code asks for its rank, which Dynamo makes a constant of.
_ASKS = frozenset({"get_rank", "get_world_size", "get_local_rank", "get_group_rank", "get_node_local_rank"})
_DIGITS = 12


class KeyField(NamedTuple):
    """Row of what upstream's cache keys leave out: an entry that differs in it is not used.

    ``title``: its name for a person. ``why``: a clause on how it changes code. ``issue``: upstream's, as a link.
    """

    title: str
    why: str
    issue: str


PARTS: dict[str, KeyField] = {
    "schema": KeyField(
        "schema of a custom op",
        "what an op writes to, and defaults of its arguments, decide which calls stay in the graph, and in which order",
        f"{_TORCH}/issues/187319",
    ),
    "tags": KeyField(
        "tags of a custom op",
        "they decide on strides, on what CUDA graphs may hold, and on what is recomputed",
        f"{_TORCH}/pull/193499",
    ),
    "fake": KeyField(
        "fake implementation of a custom op",
        "shapes, strides and types of the results are constants in what is compiled",
        f"{_TORCH}/issues/160472",
    ),
    "autograd": KeyField(
        "gradient of a custom op",
        "the backward graph is traced through it",
        f"{_TORCH}/issues/144344",
    ),
    "body": KeyField(
        "decomposition of a custom op",
        "a triton_op's body, a decomposition or a lowering is traced through",
        f"{_TORCH}/issues/160472",
    ),
    "kernels": KeyField(
        "decomposition of a custom op by the dispatcher",
        "a composite implementation that a library was given is traced through, and one for Meta gives shapes",
        f"{_TORCH}/issues/160472",
    ),
    "callable": KeyField(
        "function allowed in the graph",
        "the key has its name, and AOTAutograd traces through it",
        f"{_TORCH}/pull/194658",
    ),
    "subclass": KeyField(
        "class of a tensor",
        "AOTAutograd traces through what a subclass does, and the key has no more of it than its metadata",
        f"{_TORCH}/issues/160472",
    ),
    "pattern": KeyField(
        "patterns of others in torch's passes",
        "they replace parts of the graph after the key was computed",
        f"{_TORCH}/issues/136883",
    ),
    "inlined": KeyField(
        "function inlined ahead of time",
        "what is loaded without being traced again keeps what Dynamo has inlined, whatever stands in its place now",
        f"{_TORCH}/pull/194389",
    ),
    "files": KeyField(
        "source file of a module",
        "the code that is traced after the key was computed calls what lies in it, or imports it",
        f"{_TORCH}/issues/160472",
    ),
    "values": KeyField(
        "values that a function inlined ahead of time finds outside",
        "guards that compare them may have been dropped, as vLLM does",
        f"{_TORCH}/pull/194389",
    ),
    "rank": KeyField(
        "rank, or number of ranks",
        "merged collectives, and code that asks for its rank, have it as a constant; other ranks' entries stay",
        f"{_TORCH}/issues/188332",
    ),
    "model": KeyField(
        "modules of vLLM's model",
        "LoRA and plugins put others in place of them, or choose another kernel; the graph names their parameters",
        f"{_VLLM}/issues/55383",
    ),
    "speculation": KeyField(
        "number of speculative tokens",
        "it is a size in the graph",
        f"{_VLLM}/issues/53366",
    ),
    "modalities": KeyField(
        "multimodal limits",
        "with none allowed, the model is called with other arguments",
        f"{_VLLM}/issues/50891",
    ),
    "variables": KeyField(
        "VLLM_* variables that vLLM does not declare",
        "a model or a plugin that reads one takes another branch; those that name places, ports or logs are left out",
        "https://github.com/1CatAI/1Cat-vLLM/pull/536",
    ),
}


class _State:
    def __init__(self) -> None:
        # What each graph, by its key, was compiled with.
        self.compiled: dict[tuple[Kind, str], dict[str, Any]] = {}
        # What everything that this process has compiled, or used, was.
        self.met: dict[str, dict[str, Any]] = {}


_state: Part[_State] = Part(_State, inherit)


def is_rank_dependent() -> bool:
    """Tell whether each rank compiles this thread's graph for itself, so that none has to wait for another."""
    return _is_merging_collectives() and _try_look(lambda: operators.has_collectives(compiles.current.graph), False)


def note_compile(compiling: Compiling) -> None:
    """Observe a compile: note the fingerprint of the graph's ops, for its seal and those of entries it is part of."""
    ref, graph = compiling.ref, compiling.graph
    if ref.kind not in ENTRIES:
        return
    stated: dict[str, Any] = {_OPS: {name: _fingerprint_op(name) for name in _list_ops(graph, ref.kind)}}
    if ref.key:
        if is_rank_dependent():
            stated |= make_rank_row()
        _state.now.compiled[ref.kind, ref.key] = stated
    _add_met(stated)


def _add_met(stated: Mapping[str, Any]) -> None:
    for part in (_OPS, _FILES):
        _state.now.met.setdefault(part, {}).update(stated.get(part, {}))


def _fingerprint_op(name: str) -> dict[str, str]:
    return _try_look(lambda: operators.fingerprint_operator(name), {operators.UNSEEN: "yes"})


def _list_ops(graph: Any, kind: Kind) -> tuple[str, ...]:
    return _try_look(lambda: operators.list_ops(graph, is_lowered=kind is Kind.FX_ENTRY), ())


def _try_look(look: Callable[[], _T], otherwise: _T) -> _T:
    """Return what ``look`` does; ``otherwise`` where something of a user's raises on the way, which is reported."""
    try:
        return look()
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        remedy = "Entries are sealed without it, and nothing compares it."
        events.report(Reason.NOT_EXPLAINED, "cannot fingerprint a graph", why=text, cause=text, remedy=remedy)
        return otherwise


def build_fingerprint(ref: Ref, parts: tuple[Ref, ...] | None = (), made: Any = None) -> dict[str, str]:
    """Return the field of an entry's seal with its fingerprint; empty for a kind without one. See KeyPart.statement().

    ``parts``: the entries that it refers to; None: its graphs are not known. ``made``: what was compiled ahead of time.
    """
    kind = ref.kind
    if kind.proof.fingerprint is Fingerprint.NOTHING:
        return {}
    state = _state.now
    each = [state.compiled.get((part.kind, part.key), {}) for part in (ref, *(parts or ()))]
    if kind.proof.fingerprint is Fingerprint.PROCESS or parts is None:
        each.append(state.met)
    stated: dict[str, Any] = {_OPS: {}, _FILES: {}}
    for part, rows in (item for one in each for item in one.items()):
        stated.setdefault(part, {}).update(rows)
    # Now that it was compiled, all is imported that was needed for it.
    nothing: dict[str, Any] = {}
    stated[_FILES] |= _try_look(lambda: sources.digest_reachable(operators.find_modules(stated[_OPS])), nothing)
    if parts:
        plain = [part for part in parts if not state.compiled.get((part.kind, part.key), {}).get(_OPS)]
        stated[_PLAIN] = {part.key: "" for part in plain}
    if kind is Kind.AOT_FUNCTION:
        inlined = _try_look(lambda: fingerprint_function(made), nothing)
        stated |= inlined | {_FILES: stated[_FILES] | inlined.get(_FILES, {})}
    return {FIELD: json.dumps(stated, sort_keys=True, separators=(",", ":"))}


def describe_items(provenance: Mapping[str, str]) -> Iterator[tuple[bool, str]]:
    """Yield each item of a sealed fingerprint, in words, after whether it is compared before the entry is used.

    ``provenance``: of the seal. A malformed fingerprint yields nothing.
    """
    stated = _parse_fingerprint(provenance) or {}
    for op, parts in sorted(stated.get(_OPS, {}).items()):
        yield from (_describe_item(part, op, parts[part]) for part in PARTS if part in parts)
        if operators.UNSEEN in parts:
            hidden = " and ".join(PARTS[part].title for part in operators.HIDDEN)
            yield False, f"{op}: {hidden} not known, since it was registered before safecache was imported"
    for part in PARTS:
        rows = stated.get(part, {})
        if len(rows) > _MOST:
            yield True, f"{PARTS[part].title}: {len(rows)}, as digests"
        else:
            yield from (_describe_item(part, name, value) for name, value in sorted(rows.items()))


def _describe_item(part: str, name: str, value: object) -> tuple[bool, str]:
    named = f"{PARTS[part].title}{f', {name}' if name else ''}"
    return True, f"{named}: {value}" if part in _SHOWN else f"{named}: digest {value}"


def find_refusal(ref: Ref, provenance: Mapping[str, str]) -> Refusal | None:
    """Return why an entry with this sealed provenance does not fit this process; None if it does. See KeyPart."""
    kind, key = ref.kind, ref.key
    if kind.proof.fingerprint is Fingerprint.NOTHING:
        return None
    stated = _parse_fingerprint(provenance)
    # As earlier releases have it.
    if stated is None or (_FILES not in stated and kind.proof.fingerprint is Fingerprint.GRAPH):
        return _judge_silence(kind, key)
    found = _compare_ops(stated.get(_OPS, {}), kind) or _compare_surroundings(stated)
    if found is None:
        compiled = _state.now.compiled
        compiled.setdefault((kind, key), stated)
        _add_met(stated)
        compiled.update({(Kind.FX_ENTRY, part): {} for part in stated.get(_PLAIN, {})})
    return found


def _parse_fingerprint(provenance: Mapping[str, str]) -> dict[str, Any] | None:
    try:
        stated = json.loads(provenance[FIELD])
    except (KeyError, ValueError):
        return None
    if not isinstance(stated, dict) or not all(isinstance(row, dict) for row in stated.values()):
        return None
    return stated if all(isinstance(row, dict) for row in stated.get(_OPS, {}).values()) else None


def _compare_ops(ops: dict[str, dict[str, str]], kind: Kind) -> Refusal | None:
    for name in sorted({*ops, *operators.find_changed(compiles.current.graph, is_lowered=kind is Kind.FX_ENTRY)}):
        there, here = ops.get(name, {}), _fingerprint_op(name)
        is_unseen = operators.UNSEEN in {*there, *here}
        unknown = {operators.UNSEEN, *(operators.HIDDEN if is_unseen else ())}
        # What this process has no op of is not called by it.
        for part in sorted({*there, *here} - unknown if here.keys() - unknown else ()):
            if there.get(part, "") != here.get(part, ""):
                return _make_refusal(part, name, there.get(part, ""), here.get(part, ""))
        if is_unseen and here and name not in config.current().assume_unchanged:
            return Refusal(Reason.STALE, _UNKNOWN.format(name), cause=name)
    return None


def _judge_silence(kind: Kind, key: str) -> Refusal | None:
    """Return why an entry without a fingerprint is refused; None unless its graph calls custom ops."""
    compiled = _state.now.compiled
    known = compiled.get((kind, key))
    is_plain = known is not None and not known.get(_OPS)
    names = (
        _list_ops(compiles.current.graph, kind) if kind.proof.fingerprint is Fingerprint.GRAPH and not is_plain else ()
    )
    if not names:
        compiled.setdefault((kind, key), {})
        return None
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    evidence = f"it does not say with which {names[0]}{more} it was compiled, and its cache key does not either"
    return Refusal(Reason.STALE, evidence, cause=names[0])


def _make_refusal(part: str, name: str, there: str, here: str) -> Refusal:
    row = PARTS[part]
    if part in _SHOWN:
        change = f"was {there or 'none'!r} and is {here or 'none'!r} now"
    else:
        change = "has changed" if there and here else "is new" if here else "is gone"
    what = f"the {row.title}{f', {name},' if name else ''} {change}"
    evidence = f"{what} since it was compiled, which torch's cache key does not cover ({row.issue})"
    reason = Reason.OTHER_RANK if part == "rank" else Reason.STALE
    return Refusal(reason, evidence, cause=f"{part} {name}")


def _compare_surroundings(stated: Mapping[str, Any]) -> Refusal | None:
    for part in filter(stated.__contains__, PARTS):
        for name in sorted({*stated[part], *(_find_undeclared() if part == "variables" else ())}):
            was, here = stated[part].get(name, ""), _try_look(partial(_find_value, part, name), None)
            if here is not None and here != was:
                return _make_refusal(part, name, was, here)
    return None


def note_model(served: Served) -> None:
    """Observe that vLLM loads a model: keep a fingerprint of its modules and settings for lookups and saves."""
    model = served.model
    settings = getattr(model, "vllm_config", None)
    multimodal = getattr(getattr(settings, "model_config", None), "multimodal_config", None)
    limits = getattr(multimodal, "limit_per_prompt", None)
    stated = sorted(f"{name}={limit}" for name, limit in limits.items()) if isinstance(limits, dict) else []
    rows = {
        "speculation": str(getattr(getattr(settings, "speculative_config", None), "num_speculative_tokens", None)),
        "modalities": " ".join(stated),
    }
    if hasattr(model, "named_modules"):
        lines = []
        for name, module in model.named_modules():
            # Of vLLM's CustomOp, what it chose for this platform, with these plugins.
            chosen = getattr(getattr(module, "_forward_method", None), "__qualname__", "")
            lines.append(f"{name} {type(module).__module__}.{type(module).__qualname__} {chosen}".rstrip())
        lines += [name for name, _ in model.named_parameters()]
        rows["model"] = _hash_text("\n".join(lines))
    compiles.current.served = rows


def _is_merging_collectives() -> bool:
    """Tell whether Inductor's passes put the rank into merged collectives: they run after the key is computed."""
    settings = sys.modules.get("torch._inductor.config")
    distributed = getattr(settings, "aten_distributed_optimizations", None)
    return any(
        (
            getattr(settings, "bucket_all_gathers_fx", "none") != "none",
            getattr(settings, "_micro_pipeline_tp", False),
            getattr(distributed, "enable_overlap_scheduling", False),
        )
    )


def make_rank_row() -> dict[str, dict[str, str]]:
    """The row of this process's rank; empty where it is not one of several."""
    here = _find_rank()
    return {"rank": {"of the default group": here}} if here else {}


def _find_rank() -> str:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return ""
    size = distributed.get_world_size()
    return f"{distributed.get_rank()} of {size}" if size > 1 else ""


def fingerprint_function(made: Any) -> dict[str, dict[str, str]]:
    """The rows of a function that was compiled ahead of time: nothing is traced again where it is loaded."""
    # The digests of the functions that were traced, and whether one of them asks for its rank.
    inlined, asks = {}, False
    for source in _list_traced(made):
        module = sys.modules.get(source.module)
        name = functions.find_at_line(module, source.firstlineno) if module is not None else ""
        digest = functions.digest_named(source.module, name) if name else ""
        lines = "\n".join(source.content.splitlines()[source.firstlineno - 1 : source.lastlineno - 1])
        asks = asks or any(each in lines for each in _ASKS)
        if digest and source.module.partition(".")[0] != "torch":
            inlined[f"{source.module}:{name}"] = digest
    found = {name: functions.digest_values(*name.split(":", 1)) for name in inlined}
    rows: dict[str, dict[str, str]] = {
        "inlined": inlined,
        "values": {name: value for name, value in found.items() if value},
        "files": sources.digest_reachable({source.module for source in _list_traced(made)}),
    }
    rows = {part: row for part, row in rows.items() if row}
    if asks:
        rows |= make_rank_row()
    rows |= {part: {"": value} for part, value in compiles.current.served.items()}
    if compiles.current.served:
        rows["variables"] = {name: _hash_text(value) for name, value in _find_undeclared().items()}
    return rows


def _list_traced(made: Any) -> Iterable[Any]:
    """The sources of the functions that were traced, as torch keeps them."""
    artifacts = getattr(made, "_artifacts", None)
    found: Iterable[Any] = getattr(getattr(artifacts, "source_info", None), "inlined_sources", ())
    return found


def _find_value(part: str, name: str) -> str | None:
    """Return what this process has under a ``name`` of a row; None if it cannot tell."""
    if part == "inlined":
        return functions.digest_named(*name.split(":", 1)) or None
    if part == "values":
        return functions.digest_values(*name.split(":", 1))
    if part == "files":
        return sources.digest_file(name)
    if part == "rank":
        return _find_rank() or None
    if part == "variables":
        value = _find_undeclared().get(name)
        return "" if value is None else _hash_text(value)
    return compiles.current.served.get(part)


def _find_undeclared() -> dict[str, str]:
    declared = getattr(sys.modules.get("vllm.envs"), "environment_variables", {})
    return {
        name: value
        for name, value in config.get_environment().items()
        if name.startswith("VLLM_")
        and name not in declared
        and not _PLACES.search(name)
        and not _PLACE_VALUE.search(value)
    }


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
