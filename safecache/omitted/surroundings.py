"""What surrounds a compile and is in no cache key: ranks, servers, the driver, and functions that were inlined."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from safecache import compiles
from safecache.omitted import functions, sources
from safecache.ports import Served
from safecache.settings import config

__all__ = ["merges_collectives", "names", "note_model", "noted", "now", "of_function", "ranks"]

_DRIVER = re.compile(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s")
_SERVERS = ("vllm", "sglang")
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


def note_model(served: Served) -> None:
    """Observer: note what a model of vLLM is."""
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
        rows["model"] = _hashed("\n".join(lines))
    compiles.current.served, compiles.current.served_with = rows, dict(_resolved(settings))


def _resolved(settings: Any) -> Iterator[tuple[str, str]]:
    """What vLLM is to do, by name, and the variables that it declares: those that say what, not where, as digests."""
    for section, values in _fields(settings):
        for field, value in _fields(values):
            if not _PLACES.search(f"_{field.upper()}") and _is_plain(value):
                yield f"{section}.{field}", _hashed(repr(value))
    for name, text in config.environment().items():
        if name in _declared() and not _PLACES.search(name):
            yield name, _hashed(text)


def _fields(of: Any) -> Iterable[tuple[str, Any]]:
    if not dataclasses.is_dataclass(of):
        return ()
    return ((field.name, getattr(of, field.name, None)) for field in dataclasses.fields(of))


def _is_plain(value: Any) -> bool:
    """Whether its text is the same in every process."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, (*value, *value.values())))
    return value is None or isinstance(value, (bool, int, float, str))


def merges_collectives() -> bool:
    """Whether Inductor's passes put the rank into what they make of collectives: they run after the key is computed."""
    settings = sys.modules.get("torch._inductor.config")
    distributed = getattr(settings, "aten_distributed_optimizations", None)
    return any(
        (
            getattr(settings, "bucket_all_gathers_fx", "none") != "none",
            getattr(settings, "_micro_pipeline_tp", False),
            getattr(distributed, "enable_overlap_scheduling", False),
        )
    )


def ranks() -> dict[str, dict[str, str]]:
    """The row of this process's rank; empty where it is not one of several."""
    here = _rank("")
    return {"rank": {"of the default group": here}} if here else {}


def _rank(_: str) -> str:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return ""
    size = distributed.get_world_size()
    return f"{distributed.get_rank()} of {size}" if size > 1 else ""


def noted() -> dict[str, dict[str, str]]:
    """The rows that refuse nothing."""
    rows = {"driver": {"nvidia": _driver("nvidia")}, "server": {name: _version(name) for name in _SERVERS}}
    return {part: {k: v for k, v in row.items() if v} for part, row in rows.items() if any(row.values())}


@functools.lru_cache(maxsize=1)
def _driver(_: str) -> str:
    try:
        with open("/proc/driver/nvidia/version", encoding="utf-8", errors="replace") as file:
            found = _DRIVER.search(file.read())
    except OSError:
        return ""
    return found[1] if found else ""


def _version(name: str) -> str:
    return str(getattr(sys.modules.get(name), "__version__", ""))


def of_function(made: Any) -> dict[str, dict[str, str]]:
    """The rows of a function that was compiled ahead of time: nothing is traced again where it is loaded."""
    inlined, asks = _inlined(made)
    found = {name: functions.digest_values(*name.split(":", 1)) for name in inlined}
    rows: dict[str, dict[str, str]] = {
        "inlined": inlined,
        "values": {name: value for name, value in found.items() if value},
        "files": sources.digest_reachable({source.module for source in _traced(made)}),
    }
    rows = {part: row for part, row in rows.items() if row}
    if asks:
        rows |= ranks()
    rows |= {part: {"": value} for part, value in compiles.current.served.items()}
    if compiles.current.served:
        rows["variables"] = {name: _hashed(value) for name, value in _undeclared().items()}
        rows["configuration"] = dict(compiles.current.served_with)
    return rows


def _traced(made: Any) -> Iterable[Any]:
    """The sources of the functions that were traced, as torch keeps them."""
    artifacts = getattr(made, "_artifacts", None)
    found: Iterable[Any] = getattr(getattr(artifacts, "source_info", None), "inlined_sources", ())
    return found


def _inlined(made: Any) -> tuple[dict[str, str], bool]:
    """The digests of the functions that were traced, by name, and whether one of them asks for its rank."""
    found, asks = {}, False
    for source in _traced(made):
        module = sys.modules.get(source.module)
        name = functions.at_line(module, source.firstlineno) if module is not None else ""
        digest = functions.named(source.module, name) if name else ""
        lines = "\n".join(source.content.splitlines()[source.firstlineno - 1 : source.lastlineno - 1])
        asks = asks or any(each in lines for each in _ASKS)
        if digest and source.module.partition(".")[0] != "torch":
            found[f"{source.module}:{name}"] = digest
    return found, asks


def now(part: str, name: str) -> str | None:
    """What this process has under a ``name`` of a row; None if it cannot tell."""
    if part == "inlined":
        return functions.named(*name.split(":", 1)) or None
    if part == "values":
        return functions.digest_values(*name.split(":", 1))
    if part == "files":
        return sources.digest_file(name)
    if part in ("model", "speculation", "modalities"):
        return compiles.current.served.get(part)
    if part == "variables":
        value = _undeclared().get(name)
        return "" if value is None else _hashed(value)
    if part == "configuration":
        return compiles.current.served_with.get(name, "")
    return _NOW[part](name) or None if part in _NOW else None


def names(part: str) -> Iterable[str]:
    """What there may be in a row now that was not there before."""
    if part == "configuration":
        return compiles.current.served_with
    return _undeclared() if part == "variables" else ()


_NOW: Mapping[str, Callable[[str], str]] = {"rank": _rank, "driver": _driver, "server": _version}


def _declared() -> Mapping[str, Any]:
    declared: Mapping[str, Any] = getattr(sys.modules.get("vllm.envs"), "environment_variables", {})
    return declared


def _undeclared() -> dict[str, str]:
    declared = _declared()
    return {
        name: value
        for name, value in config.environment().items()
        if name.startswith("VLLM_")
        and name not in declared
        and not _PLACES.search(name)
        and not _PLACE_VALUE.search(value)
    }


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
