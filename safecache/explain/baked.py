"""Parts of cache keys that depend on no graph: those of a cache, those of this environment, and paths among them."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from safecache import explain
from safecache.errors import SafecacheError
from safecache.explain import CHOSEN, ENVIRONMENT, PLACE, key_records
from safecache.explain.key_records import Component, KeyRecord
from safecache.places import layout
from safecache.places.refs import Ref
from safecache.reporting.kinds import ENTRIES, Kind
from safecache.settings import children, config
from safecache.signing import provenance

__all__ = [
    "CONFIGS",
    "PATHS",
    "Here",
    "PathInKeys",
    "compute_environment",
    "find_path",
    "is_of_place",
    "main",
    "summarise_keys",
]

CONFIGS = ("inductor config ", "functorch config ")
_KEPT = (PLACE, ENVIRONMENT)
_PARTS = ("torch", "triton", "cuda", "hip", "device", "number of CPU threads")
# Variables that say where something lies or what is printed: no key depends on them, and what is collected must not.
_OF_PLACES = re.compile(r"_(DIR|DIRECTORY|FILE|FOLDER|HOME|HOST|LEVEL|LOG|LOGGING|LOGS|PATH|PORT|ROOT|TRACE|URL)$")
_UNSET = Component("", "", "unset")

# Values by their digests, as text, by name.
_Values = dict[str, dict[str, str]]

# Seconds. Importing torch from a cold disk takes a minute.
_PATIENCE = 300.0
# Nothing of safecache's is needed there, and no GPU may be seen.
_WITHOUT: Mapping[str, str] = {"SAFECACHE": "0", "CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
_HIDDEN = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


def is_of_place(name: str) -> bool:
    """Tell whether the component ``name`` is a variable that no key depends on, such as for a path or for logs."""
    return name.startswith(ENVIRONMENT) and _OF_PLACES.search(name) is not None


def summarise_keys(roots: Iterable[str]) -> dict[str, Any]:
    """Summarise the key records of the caches in ``roots`` in JSON's types; equal records give equal results.

    ``parts``: of entries, settings that the program had not chosen itself, versions and places; ``environment``:
    variables; ``kernels``: of Triton's keys, with ``compilers`` by target; ``recorded``: number of records; ``unsure``:
    number of entries' records that do not say what the program had chosen.
    """
    caches = dict.fromkeys(cache for root in roots for cache in layout.find_triton_caches(root))
    records = [
        record
        for cache in caches
        for record in key_records.list_records(cache)
        if record.kind is not Kind.AOT_MODEL and os.path.isdir(Ref(record.kind, record.key, cache).path)
    ]
    entries = [record for record in records if record.kind in ENTRIES]
    kernels = [record for record in records if record.kind is Kind.KERNEL]
    sure = [record for record in entries if any(each.name.startswith(CHOSEN) for each in record.components)]
    parts = _collect_values(map(_list_unchosen, entries))
    of_kernels = (
        [each for each in record.components if each.name == "triton" or each.name.startswith(ENVIRONMENT)]
        for record in kernels
    )
    return {
        "recorded": len(records),
        "unsure": len(entries) - len(sure),
        "parts": {name: found for name, found in parts.items() if not name.startswith(ENVIRONMENT)},
        "environment": _complete_values(
            {n: v for n, v in parts.items() if n.startswith(ENVIRONMENT)}, map(_list_names, entries)
        ),
        "kernels": _complete_values(_collect_values(of_kernels), map(_list_names, kernels)),
        "compilers": _list_compilers(kernels),
    }


def _list_unchosen(record: KeyRecord) -> Iterator[Component]:
    """Yield what the environment decides; without settings if ``record`` does not say which the program chose."""
    lists = {each.name.removeprefix(CHOSEN): each.text for each in record.components if each.name.startswith(CHOSEN)}
    chosen = {f"{title}{name}" for title, names in lists.items() for name in names.split()}
    for each in record.components:
        is_told = (
            bool(lists) and each.name not in chosen if each.name.startswith(CONFIGS) else each.name.startswith(_KEPT)
        )
        if is_told or each.name in _PARTS:
            yield each


def _list_names(record: KeyRecord) -> set[str]:
    return {each.name for each in record.components}


def _collect_values(found: Iterable[Iterable[Component]]) -> _Values:
    home, values = os.path.join(os.path.expanduser("~"), ""), _Values()
    for each in (component for several in found for component in several):
        # Not a path that would name this user.
        is_shown = home == os.sep or home not in each.text
        values.setdefault(each.name, {})[each.digest] = each.text if is_shown else "(not shown)"
    return {name: dict(sorted(values[name].items())) for name in sorted(values)}


def _complete_values(values: _Values, names: Iterable[set[str]]) -> _Values:
    """Add an empty digest to each variable that was unset in some of the records."""
    for present in names:
        for name in values.keys() - present:
            values[name] = {_UNSET.digest: _UNSET.text, **values[name]}
    return values


def _list_compilers(kernels: Iterable[KeyRecord]) -> dict[str, list[str]]:
    """The digests of Triton's backend and the compiler that it runs, by target."""
    found: dict[str, set[str]] = {}
    for record in kernels:
        parts: Mapping[str, Component] = {each.name: each for each in record.components}
        backend = parts.get("ptxas") or parts.get("backend")
        if "target" in parts and backend is not None:
            found.setdefault(parts["target"].text, set()).add(backend.digest)
    return {target: sorted(found[target]) for target in sorted(found)}


class Here(NamedTuple):
    """Key components of this environment. ``parts``: (digest, text) by name; ``kernels``: the same of Triton's keys.

    ``compilers``: the digest of Triton's backend for each target that was asked for, "" for one that it lacks.
    """

    parts: dict[str, tuple[str, str]]
    kernels: dict[str, tuple[str, str]]
    compilers: dict[str, str]


def compute_environment(targets: Iterable[str]) -> Here:
    """Compute the key components of this environment in a child process that sees no GPU, in at most 300 s.

    ``targets``: of kernels, such as "cuda 90". Raises SafecacheError, such as if torch cannot be imported.
    """
    command = [sys.executable, "-c", "from safecache.explain import baked; baked.main()", *targets]
    environment = {**config.copy_environment(), **_WITHOUT}
    try:
        # A thread count that the environment sets is part of a key, and so is one that it does not.
        process = subprocess.run(
            command, **children.make_options(environment), capture_output=True, text=True, timeout=_PATIENCE
        )
        stated = json.loads(process.stdout.splitlines()[-1]) if process.returncode == 0 else None
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError) as error:
        raise SafecacheError(f"what keys are made of here could not be computed: {error}") from error
    if stated is None:
        last = (process.stderr.strip().splitlines() or [f"status {process.returncode}"])[-1]
        raise SafecacheError(f"what keys are made of here could not be computed: {last}")
    parts, kernels = (
        {name: (one, other) for name, (one, other) in stated[each].items()} for each in ("parts", "kernels")
    )
    return Here(parts, kernels, stated["compilers"])


def main() -> None:
    """Print it, as JSON, for the targets that the arguments name."""
    torch: Any = importlib.import_module("torch")
    found = [*_list_torch_parts(torch), *explain.list_places(os.path.dirname(str(torch.__file__)))]
    kernels, compilers = _list_triton_parts(sys.argv[1:])
    # Up to 2.13 torch leaves Triton out of a key where there is no GPU. What it puts in is what Triton does.
    stated = {"parts": _index_parts([*kernels[:1], *found]), "kernels": _index_parts(kernels), "compilers": compilers}
    print(json.dumps(stated))


def _index_parts(found: Iterable[Component]) -> dict[str, tuple[str, str]]:
    return {each.name: (each.digest, each.text) for each in found}


def _list_torch_parts(torch: Any) -> tuple[Component, ...]:
    """The names and arguments are those of torch 2.11 to 2.15: see codecache.py there."""
    functorch: Any = importlib.import_module("torch._functorch.config")
    codecache: Any = importlib.import_module("torch._inductor.codecache")
    # With a tensor on a CPU, or the number of threads would be left out.
    details = codecache.FxGraphHashDetails(None, [torch.ones(1)], {}, [])
    pickler = codecache.FxGraphCachePickler(torch.fx.GraphModule({}, torch.fx.Graph()))
    settings = functorch.save_config_portable(ignore_private_configs=False)
    environ = {name: text for name, text in config.get_environment().items() if name not in _HIDDEN}
    cuda = [key_records.make_component("cuda", str(torch.version.cuda))] if torch.version.cuda else []
    hip = [key_records.make_component("hip", str(torch.version.hip))] if torch.version.hip else []
    lines = pickler.debug_lines(details)
    return (*explain.parse_components(lines, provenance.describe(), settings, environ), *cuda, *hip)


def _list_triton_parts(targets: Iterable[str]) -> tuple[list[Component], dict[str, str]]:
    try:
        version = importlib.import_module("triton").__version__
    except ImportError:
        return [], {}
    binding, compiler = (importlib.import_module(f"triton.{name}") for name in ("_C.libtriton", "compiler.compiler"))
    target_type = importlib.import_module("triton.backends.compiler").GPUTarget
    triton_key = importlib.import_module("triton.runtime.cache").triton_key
    found = [explain.make_triton_part(triton_key(), version)]
    variables = sorted(binding.get_cache_invalidating_env_vars().items())
    found += [explain.make_variable_part(name, value) for name, value in variables]
    compilers = {}
    for target in targets:
        backend, _, arch = target.partition(" ")
        try:
            made = compiler.make_backend(target_type(backend, int(arch) if arch.isdecimal() else arch, 32))
            compilers[target] = key_records.digest(str(made.hash()))
        except Exception:  # of a backend that this Triton lacks, or a compiler that it cannot run
            compilers[target] = ""
    return found, compilers


class PathInKeys(NamedTuple):
    """``component``: its name, as components() gives it, in a regular expression.

    ``path``: of what; ``remedy``: what to do if it differs; ``until``: the first release in whose keys it is not, such
    as "Triton 3.9", or "".
    """

    component: str
    path: str
    remedy: str
    until: str = ""


_LEAVE_UNSET = "leave it unset, or give it the same value"

PATHS: tuple[PathInKeys, ...] = (
    PathInKeys(r"inductor config cpp\.cxx", "the compiler, from CXX", "name it without a path, as in CXX=g++"),
    PathInKeys(r"inductor config cuda\.cuda_cxx", "nvcc", _LEAVE_UNSET),
    PathInKeys(r"inductor config rocm\.(rocm_home|ck_dir)", "ROCm, and TORCHINDUCTOR_CK_DIR", _LEAVE_UNSET),
    PathInKeys(r"inductor config xpu\.oneapi_root", "oneAPI", _LEAVE_UNSET),
    PathInKeys(
        r"inductor config aot_inductor\.(output_path|custom_op_libs|aoti_shim_library(_path)?)",
        "what AOTInductor writes, and links against",
        _LEAVE_UNSET,
    ),
    PathInKeys(
        r"inductor config (autoheuristic_log_path|profile_bandwidth_output|triton\.proton_output_dir"
        r"|(torchinductor_)?worker_log_?path|global_cache_dir|aten_distributed_optimizations\..*_profile_path)",
        "logs and profiles: TORCHINDUCTOR_AUTOHEURISTIC_LOG_PATH, …_PROFILE_OUTPUT, …_TRITON_PROTON_OUTPUT_DIR",
        _LEAVE_UNSET,
    ),
    PathInKeys(r"functorch config memory_budget_pareto_dir", "PARTITIONER_MEMORY_BUDGET_PARETO_DIR", _LEAVE_UNSET),
    PathInKeys(
        r"env (MLIR_DUMP_PATH|LLVM_PASS_PLUGIN_PATH|TRITON_PLUGIN_PATHS)", "a variable of Triton's", _LEAVE_UNSET
    ),
    PathInKeys(
        r"option extern_libs",
        "Triton's own libraries for AMD GPUs",
        "install Triton at the same path",
        until="Triton 3.9",
    ),
)


def find_path(component: str) -> PathInKeys | None:
    """Return what is known of the path in the key's component of this name; None if there is no path in it."""
    return next((known for known in PATHS if re.fullmatch(known.component, component)), None)
