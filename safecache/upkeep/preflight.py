"""Whether a cache that was filled elsewhere can be used here, told before anything is compiled and without a GPU.

What it was made with is collected there, by collected(), and compared with this environment by differences(). A key
that no longer can be computed here, a seal that is not trusted, a build that may not run: each is named with a remedy.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from safecache.explain import baked as of_records
from safecache.explain.baked import Here
from safecache.explain.components import ENVIRONMENT, PLACE
from safecache.files import opening
from safecache.places import layout
from safecache.reporting.kinds import ENTRIES, Kind, Reason
from safecache.settings import config
from safecache.signing import keyring, provenance, seal
from safecache.store.groups import Group
from safecache.upkeep import catalogue, inventory
from safecache.upkeep.catalogue import Signature

__all__ = ["SERVERS", "UNRECORDED", "Difference", "collected", "differences", "joined", "within"]

_BUILD = ("machine", "torch", "triton", "python", "gpu")
_UNSHOWN = "(not shown)"
_LONGEST_SEAL = 16 << 10
SERVERS = ("vllm", "sglang")
_SECONDS = 20.0


class Difference(NamedTuple):
    """``what`` differs, as it was and as it is here. ``misses``: whether entries miss by it, or only may."""

    what: str
    baked: str
    here: str
    remedy: str
    misses: bool = True

    def __str__(self) -> str:
        if self.baked == self.here:
            return f"{self.what} {'differs' if self.misses else 'may differ'} {_UNSHOWN}"
        return f'{self.what} differs: baked "{self.baked}", here "{self.here}"'


UNRECORDED = Difference(
    "what keys are made of, which is not recorded there,",
    _UNSHOWN,
    _UNSHOWN,
    "Fill the cache with safecache active.",
    misses=False,
)


def within(directory: str) -> list[str]:
    """The caches that ``directory`` is, or has in it, as after unpacking or of vLLM. Raises OSError."""
    parts = [os.path.join(directory, name) for name in ("inductor", layout.TRITON_FOLDER)]
    if os.path.isdir(parts[0]):
        return [part for part in parts if os.path.isdir(part)]
    return list(layout.vllm_caches(directory)) or [directory]


def collected(directories: Iterable[str]) -> dict[str, Any]:
    """What the caches in these directories were made with, in JSON's types. Names no host, no user and no secret.

    The same caches give the same. ``components``: what keys were made of; ``signers``: the ids of the keys that sealed;
    ``namespaces``; ``builds``: what built it, by what seals say that hold here; ``refused``: how many files have none
    that does, by reason; ``groups``: how many there are. Raises OSError.
    """
    roots = list(dict.fromkeys(map(os.path.realpath, directories)))
    groups = [group for root in roots for group in inventory.take(root).groups if group.kind.upkeep.is_warmed]
    signatures = [(group.kind, each) for group in groups for each in catalogue.signatures_in(group)]
    holding = [(kind, each) for kind, each in signatures if each.state == catalogue.SEALED]
    others = [each for _, each in signatures if each.state not in (catalogue.SEALED, catalogue.COMPARED)]
    foreign = _namespaces(groups, others)
    return {
        "groups": len(groups),
        "signers": sorted({each.signer for _, each in signatures if each.signer}),
        "namespaces": sorted({*foreign, *([config.current().namespace] if holding else [])}),
        "refused": dict(sorted(Counter(each.state for each in others).items())),
        "builds": {name: _stated(name, holding) for name in (*_BUILD, "cpu")},
        "components": of_records.of_keys(roots),
    }


def _namespaces(groups: Iterable[Group], others: Iterable[Signature]) -> set[str]:
    """Those that entries say they are sealed for, if it is not this process's."""
    kinds = {file.path: group.kind for group in groups for file in group.files}
    foreign = [each.path for each in others if each.state == Reason.OTHER_NAMESPACE.value]
    found = set()
    for path in foreign:
        if kinds.get(path) in ENTRIES:
            end = opening.read_end(path, opening.check_regular, _LONGEST_SEAL, flags=os.O_NOFOLLOW)
            found.add(seal.stated_namespace(*end) or "unknown")
    return found


def _stated(name: str, holding: Iterable[tuple[Kind, Signature]]) -> list[str]:
    """Of a kernel torch does not count, of an entry the CPU does not: as provenance has it."""
    values = (each.provenance.get(name, "") for kind, each in holding if not (kind is Kind.KERNEL and name == "torch"))
    return sorted({value for value in values if value})


def joined(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """What is collected of several caches and packs, of all of them together. Of a pack nothing is refused."""
    found: Any = {}
    for part in parts:
        found = _joined(found, part) if found else dict(part)
    return {**found, "refused": {}}


def _joined(one: Any, other: Any) -> Any:
    if isinstance(one, dict):
        return {
            name: _joined(one[name], other[name]) if name in one and name in other else {**one, **other}[name]
            for name in sorted({*one, *other})
        }
    if isinstance(one, list):
        return sorted({*one, *other})
    return one + other if isinstance(one, int) else one


class _Gpu(NamedTuple):
    name: str
    architecture: str
    driver: str


def _gpus() -> list[_Gpu]:
    """Nvidia's, as their driver tells; asked for without CUDA, which would be initialised by it."""
    command = ["nvidia-smi", "--query-gpu=name,compute_cap,driver_version", "--format=csv,noheader"]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return []
    rows = [[field.strip() for field in line.split(",")] for line in process.stdout.splitlines()]
    return [
        _Gpu(name, f"sm_{cap.replace('.', '')}", driver) for name, cap, driver in (row for row in rows if len(row) == 3)
    ]


def differences(baked: Mapping[str, Any], made: Mapping[str, Any] | None = None) -> list[Difference]:
    """How this environment differs from what ``baked``, as of collected(), was made with: what misses by it first.

    ``made``: what a pack says that it was made with, with the releases of servers. Raises SafecacheError if torch
    cannot be imported.
    """
    keys = baked["components"]
    here = of_records.compute_environment(sorted(keys["compilers"]))
    gpus = _gpus()
    found = [*_of_seals(baked), *_of_builds(baked["builds"], gpus), *_of_servers(made or {})]
    other_torch = any(each.what in ("torch", "triton") for each in found)
    if not other_torch:
        found += [
            *_of_parts(keys, here, bool(baked["builds"]["cpu"])),
            *_of_kernels(keys, here),
            *_of_device(keys, gpus),
        ]
    if not keys["recorded"]:
        found.append(UNRECORDED)
    elif keys["unsure"]:
        remedy = "Warm it with this version of safecache, whose records say which settings the program has chosen."
        found.append(Difference("settings of older records", _UNSHOWN, _UNSHOWN, remedy, misses=False))
    return sorted(found, key=lambda each: not each.misses)


_REMEDIES = {
    Reason.UNKNOWN_KEY: "Give this process that key: SAFECACHE_KEY_FILE=FILE, or safecache keys trust FILE.",
    Reason.UNSEALED: "Fill the cache with safecache active, or seal it there once, on your word: safecache adopt DIR.",
    Reason.REVOKED_KEY: "Fill the cache anew, sealed with another key.",
    Reason.EXPIRED_KEY: "Trust the key that follows it, and seal there with that: safecache sign DIR.",
    Reason.KEY_NOT_ALLOWED: "If it should supply this namespace: safecache keys trust FILE --namespace PATTERN.",
}


def _of_seals(baked: Mapping[str, Any]) -> Iterator[Difference]:
    ring, own, now = keyring.current(), config.current().namespace, time.time()
    ours = ring.signing.id.hex() if ring.signing is not None else "no key"
    for signer in baked["signers"]:
        key = ring.find(bytes.fromhex(signer))
        reason = Reason.UNKNOWN_KEY if key is None else key.objection(now)
        if key is not None and reason is None and not key.allows(own):
            reason = Reason.KEY_NOT_ALLOWED
        if reason is not None:
            yield Difference(f"signing key [{reason.value}]", signer, ours, _REMEDIES[reason])
    for namespace in baked["namespaces"]:
        if namespace != own:
            remedy = f"export SAFECACHE_NAMESPACE={shlex.quote(namespace)}"
            yield Difference("SAFECACHE_NAMESPACE", namespace, own, remedy)
    told = {Reason.UNKNOWN_KEY, Reason.REVOKED_KEY, Reason.EXPIRED_KEY, Reason.KEY_NOT_ALLOWED, Reason.OTHER_NAMESPACE}
    for state, count in baked["refused"].items():
        if state not in {reason.value for reason in told}:
            remedy = _REMEDIES.get(Reason(state), "safecache verify DIR names them. Fill the cache anew.")
            yield Difference(f"seals of {count} files", state, "none that holds", remedy)


_REBUILT = "Fill the cache on a machine like this one, or install there what is here."


def _of_builds(builds: Mapping[str, list[str]], gpus: list[_Gpu]) -> Iterator[Difference]:
    here = provenance.describe() | {"gpu": ",".join(sorted({gpu.architecture for gpu in gpus}))}
    for name in ("machine", "torch", "triton"):
        if builds[name] and here[name] not in builds[name]:
            remedy = (
                _REBUILT
                if name == "machine"
                else f"Install {name} {builds[name][-1]}, or fill the cache with this one."
            )
            yield Difference(name, ", ".join(builds[name]), here[name] or "none", remedy)
    minors = {version.rpartition(".")[0] for version in builds["python"]}
    if minors and here["python"].rpartition(".")[0] not in minors:
        remedy = "Use that Python: the commands that build libraries name its headers."
        yield Difference("Python", ", ".join(builds["python"]), here["python"], remedy, misses=bool(builds["cpu"]))
    baked = {each for value in builds["gpu"] for each in value.split(",")}
    if baked and not gpus:
        remedy = "Look again where the GPU is."
        yield Difference("GPU", ", ".join(sorted(baked)), "none that nvidia-smi sees", remedy, misses=False)
    elif baked and baked.isdisjoint(here["gpu"].split(",")):
        yield Difference("GPU", ", ".join(sorted(baked)), here["gpu"], _REBUILT)
    yield from _of_cpus(builds["cpu"])


def _of_cpus(baked: list[str]) -> Iterator[Difference]:
    """Libraries are built for the vector instructions there are: with fewer they may not run, with more are others."""
    here = set(provenance.instructions().split())
    for instructions in baked:
        there = set(instructions.split())
        lacking = sorted(there - here)
        more = sorted(name for name in here - there if name.startswith(("avx", "amx", "sve")))
        if lacking:
            yield Difference("CPU", f"with {' '.join(lacking[:5])}", "without", _REBUILT)
        elif more:
            yield Difference("CPU", f"without {' '.join(more[:5])}", "with", _REBUILT)


def _of_servers(made: Mapping[str, Any]) -> Iterator[Difference]:
    for name, version in ((name, made[name]) for name in SERVERS if name in made):
        here = provenance.installed(name)
        if here != version:
            remedy = f"pip install {name}=={version}, or fill the cache with this one."
            yield Difference(name, version, here or "none", remedy)


def _of_parts(keys: Mapping[str, Any], here: Here, with_libraries: bool) -> Iterator[Difference]:
    """Of settings, versions, threads and places. What one variable decides is told of the variable, once."""
    variables: dict[str, list[str]] = {}
    for name, values in keys["parts"].items():
        digest, text = here.parts.get(name, ("", "none"))
        if name == "device" or list(values) == [digest] or (name.startswith(PLACE) and not with_libraries):
            continue
        if digest in values:
            others = " or ".join(value for other, value in values.items() if other != digest)
            yield Difference(f"{name} of a part of it", others, text, "The other part can hit here.", misses=False)
            continue
        shown = " or ".join(dict.fromkeys(values.values()))
        variable = _variable_of(name, keys["environment"], here)
        if variable and name.startswith(of_records.CONFIGS):
            variables.setdefault(variable, []).append(f"{name}: {shown} there, {text} here")
        else:
            yield Difference(name, shown, text, _remedy(name, shown))
    for variable, settings in variables.items():
        yield _of_variable(variable, keys["environment"], here.parts, f" ({'; '.join(settings)})")
    yield from _of_vllm(keys["environment"], here)


def _remedy(name: str, shown: str) -> str:
    if name == "number of CPU threads":
        return f"export OMP_NUM_THREADS={shlex.quote(shown.partition(' or ')[0])}, there and here."
    if name.startswith(PLACE):
        return "Install it at the same path, or start Python through a link there: the keys of libraries have it."
    known = of_records.find_path(name)
    if known is not None:
        return f"{known.path}: {known.remedy}."
    if name.startswith(of_records.CONFIGS):
        return "Set it as it was there: by its variable, or in a sitecustomize, as the program has not chosen it."
    return _REBUILT


def _variable_of(name: str, environment: Mapping[str, dict[str, str]], here: Here) -> str:
    """The variable that is named after the setting, and differs; "" if there is none."""
    last = name.rpartition(" ")[2].rpartition(".")[2].upper()
    known = {*environment, *(each for each in here.parts if each.startswith(ENVIRONMENT))}
    candidates = [each for each in sorted(known) if each.endswith(last) and _differs(each, environment, here.parts)]
    return candidates[0] if candidates else ""


_UNSET = ("", "unset")


def _differs(name: str, there: Mapping[str, dict[str, str]], here: Mapping[str, tuple[str, str]]) -> bool:
    return here.get(name, _UNSET)[0] not in there.get(name, {"": "unset"})


def _of_variable(
    name: str,
    there: Mapping[str, dict[str, str]],
    here: Mapping[str, tuple[str, str]],
    which: str = "",
    *,
    misses: bool = True,
) -> Difference:
    variable = name.removeprefix(ENVIRONMENT)
    values = there.get(name, {"": "unset"})
    remedy = f"unset {variable}" if "" in values else f"export {variable}={shlex.quote(next(iter(values.values())))}"
    if _UNSHOWN in values.values():
        remedy = f"Set {variable} as it was there."
    return Difference(f"{variable}{which}", " or ".join(values.values()), here.get(name, _UNSET)[1], remedy, misses)


def _of_vllm(environment: Mapping[str, dict[str, str]], here: Here) -> Iterator[Difference]:
    """What vLLM reads may be in its own key, or decide what is compiled."""
    known = {*environment, *(name for name in here.parts if name.startswith(ENVIRONMENT))}
    for name in sorted(each for each in known if each.startswith(f"{ENVIRONMENT}VLLM_")):
        if not of_records.is_of_place(name) and _differs(name, environment, here.parts):
            yield _of_variable(name, environment, here.parts, misses=False)


def _of_kernels(keys: Mapping[str, Any], here: Here) -> Iterator[Difference]:
    kernels = keys["kernels"]
    if not kernels:
        return
    for name in sorted({*kernels, *here.kernels}):
        if name.startswith(ENVIRONMENT) and _differs(name, kernels, here.kernels):
            yield _of_variable(name, kernels, here.kernels, " (in the keys of Triton's kernels)")
        elif not name.startswith(ENVIRONMENT) and here.kernels.get(name, _UNSET)[0] not in kernels.get(name, {}):
            shown = " or ".join(kernels.get(name, {}).values())
            yield Difference(name, shown, here.kernels.get(name, ("", "none"))[1], _REBUILT)
    for target, digests in keys["compilers"].items():
        found = here.compilers.get(target, "")
        if found not in digests:
            remedy = "Use the same Triton and ptxas: TRITON_PTXAS_PATH and TRITON_PTXAS_BLACKWELL_PATH name another."
            yield Difference(f"Triton's compiler for {target}", _UNSHOWN, _UNSHOWN, remedy, misses=bool(found))


def _of_device(keys: Mapping[str, Any], gpus: list[_Gpu]) -> Iterator[Difference]:
    """A GPU's name is in the keys of graphs, besides its architecture."""
    there = set(keys["parts"].get("device", {}).values())
    here = {each for gpu in gpus for each in (gpu.name, f"{gpu.name} {gpu.architecture}")}
    if there and here and there.isdisjoint(here):
        yield Difference(
            "GPU's name", " or ".join(sorted(there)), " or ".join(sorted({gpu.name for gpu in gpus})), _REBUILT
        )
