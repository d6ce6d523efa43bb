"""Checks of a cache that was filled elsewhere: whether it can be used here, without compiling and without a GPU.

What it was made with is compared with this environment. A key that cannot be computed here any more, a seal that is
not trusted, a build that may not run: each is named with a remedy.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from safecache.doctor.finding import UNSHOWN, Difference
from safecache.errors import PackRefusedError
from safecache.explain import ENVIRONMENT, PLACE
from safecache.explain import baked as of_records
from safecache.explain.baked import Here
from safecache.packs import archive
from safecache.reporting.kinds import Reason
from safecache.settings import config
from safecache.settings.units import write_count
from safecache.signing import keyring, provenance
from safecache.upkeep import packing

__all__ = [
    "Baseline",
    "Gpu",
    "check_builds",
    "check_cpus",
    "check_device",
    "check_kernels",
    "check_parts",
    "check_records",
    "check_seals",
    "check_servers",
    "check_vllm",
]

_SECONDS = 20.0
_UNSET = ("", "unset")
_REBUILT = "safecache warm -- CMD  # on a machine like this one; or install there what is here"


class Gpu(NamedTuple):
    """GPU of Nvidia's, as its driver reports; ``architecture``: such as ``sm_90``."""

    name: str
    architecture: str
    driver: str


class Baseline:
    """Origin of a cache, as packing.collect() returns it, with this environment to compare.

    ``made``: versions that a pack states, with those of servers. ``refusal``: why the pack is refused, and nothing that
    it states counts; else None.
    """

    def __init__(
        self, baked: Mapping[str, Any], made: Mapping[str, Any], groups: int, refusal: PackRefusedError | None = None
    ) -> None:
        self.baked, self.made, self.groups, self.refusal = baked, made, groups, refusal
        self.keys: Mapping[str, Any] = baked.get("components", {})

    @classmethod
    def read_pack(cls, path: str) -> Baseline:
        """Return the baseline of the pack at ``path``, with ``refusal`` if the pack is refused. Raises OSError."""
        try:
            manifest = archive.open_pack(path).manifest
        except PackRefusedError as error:
            return cls({}, {}, 1, error)
        return cls(manifest.get("baked") or {}, manifest.get("made_with") or {}, len(manifest["groups"]))

    @classmethod
    def collect_directories(cls, directories: Sequence[str]) -> Baseline:
        """Return the baseline of the caches that these directories are or contain. Raises OSError."""
        for directory in directories:
            os.scandir(directory).close()
        baked = packing.collect(cache for directory in directories for cache in packing.find_caches(directory))
        return cls(baked, {}, baked["groups"])

    @cached_property
    def local_environment(self) -> Here:
        """Key components of this environment. Raises SafecacheError if torch cannot be imported."""
        return of_records.compute_environment(sorted(self.keys["compilers"]))

    @cached_property
    def gpus(self) -> list[Gpu]:
        """Asked for without CUDA, which would be initialised by it."""
        command = ["nvidia-smi", "--query-gpu=name,compute_cap,driver_version", "--format=csv,noheader"]
        try:
            process = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
        except (OSError, subprocess.TimeoutExpired):
            return []
        rows = [[field.strip() for field in line.split(",")] for line in process.stdout.splitlines()]
        return [Gpu(row[0], f"sm_{row[1].replace('.', '')}", row[2]) for row in rows if len(row) == 3]

    @cached_property
    def is_of_this_torch(self) -> bool:
        """Whether keys can be compared: with another torch or Triton all of them differ."""
        here, builds = provenance.describe(), self.baked["builds"]
        return all(not builds[name] or here[name] in builds[name] for name in ("torch", "triton"))


def check_records(baseline: Baseline) -> Iterator[Difference]:
    """Whether it is known what it was made with."""
    if baseline.refusal:
        error, reason = baseline.refusal, Reason(baseline.refusal.reason)
        remedy = _REMEDIES.get(reason, "safecache copy here PACK  # on the machine that has the cache")
        yield Difference(
            f"the pack {error.pack}", "sealed there", str(error), remedy, True, reason, "is refused", error.why
        )
        return
    why, remedy = "", "safecache warm -- CMD  # with this release of safecache active"
    if baseline.groups and not baseline.keys.get("recorded"):
        why = "what its keys are made of is not recorded there"
    elif baseline.groups and baseline.keys["unsure"]:
        why = "its records do not say which settings the program chose"
    if why:
        yield Difference("settings", UNSHOWN, UNSHOWN, remedy, False, Reason.NOT_EXPLAINED, "are not compared", why)


_REMEDIES = {
    Reason.UNKNOWN_KEY: "safecache keys trust FILE  # its public part; or export SAFECACHE_KEY_FILE=FILE",
    Reason.UNSEALED: "safecache adopt DIR  # there, only if no one else could write to it",
    Reason.REVOKED_KEY: "safecache warm -- CMD  # with another key",
    Reason.EXPIRED_KEY: "safecache warm -- CMD  # with the next key; safecache sign DIR before one expires",
    Reason.KEY_NOT_ALLOWED: "safecache keys trust FILE --namespace PATTERN  # if it should supply this namespace",
}


def check_seals(baseline: Baseline) -> Iterator[Difference]:
    """Differences of signing keys, namespaces and seals."""
    ring, own, now = keyring.current(), config.current().namespace, time.time()
    ours = ring.signing.id.hex() if ring.signing is not None else "no key"
    for signer in baseline.baked["signers"]:
        key = ring.find(bytes.fromhex(signer))
        reason = Reason.UNKNOWN_KEY if key is None else key.find_objection(now)
        if key is not None and reason is None and not key.can_supply(own):
            reason = Reason.KEY_NOT_ALLOWED
        if reason is not None:
            yield Difference("signing key", signer, ours, _REMEDIES[reason], reason=reason)
    for namespace in baseline.baked["namespaces"]:
        if namespace != own:
            remedy = f"export SAFECACHE_NAMESPACE={shlex.quote(namespace)}"
            yield Difference("SAFECACHE_NAMESPACE", namespace, own, remedy, reason=Reason.OTHER_NAMESPACE)
    told = {Reason.UNKNOWN_KEY, Reason.REVOKED_KEY, Reason.EXPIRED_KEY, Reason.KEY_NOT_ALLOWED, Reason.OTHER_NAMESPACE}
    for state, count in baseline.baked["refused"].items():
        if state not in {reason.value for reason in told}:
            remedy = _REMEDIES.get(Reason(state), "safecache verify DIR  # lists them; then fill the cache again")
            what, why = f"seals of {write_count(count, 'file')}", "they do not verify there either"
            yield Difference(what, state, "none that holds", remedy, True, Reason(state), "are refused", why)


def check_builds(baseline: Baseline) -> Iterator[Difference]:
    """Differences of versions, machine and GPU architecture."""
    builds, gpus = baseline.baked["builds"], baseline.gpus
    here = provenance.describe() | {"gpu": ",".join(sorted({gpu.architecture for gpu in gpus}))}
    for name in ("machine", "torch", "triton"):
        if builds[name] and here[name] not in builds[name]:
            shown, remedy = ", ".join(builds[name]), f"pip install {name}=={builds[name][-1]}  # or fill the cache anew"
            remedy = _REBUILT if name == "machine" else remedy
            yield Difference(name, shown, here[name] or "none", remedy, reason=Reason.OTHER_BUILD)
    minors = {version.rpartition(".")[0] for version in builds["python"]}
    if minors and here["python"].rpartition(".")[0] not in minors:
        remedy = "safecache warm -- CMD  # with this Python: commands that build libraries name its headers"
        shown, misses = ", ".join(builds["python"]), bool(builds["cpu"])
        yield Difference("Python", shown, here["python"], remedy, misses, Reason.OUTDATED)
    baked = {each for value in builds["gpu"] for each in value.split(",")}
    if baked and not gpus:
        shown, remedy = ", ".join(sorted(baked)), "nvidia-smi  # run this command again where it lists a GPU"
        yield Difference("GPU", shown, "none that nvidia-smi sees", remedy, False, Reason.OTHER_GPU)
    elif baked and baked.isdisjoint(here["gpu"].split(",")):
        yield Difference("GPU", ", ".join(sorted(baked)), here["gpu"], _REBUILT, reason=Reason.OTHER_GPU)


def check_cpus(baseline: Baseline) -> Iterator[Difference]:
    """Libraries are built for the vector instructions there are: with fewer they may not run, with more are others."""
    here = set(provenance.list_instructions().split())
    for instructions in baseline.baked["builds"]["cpu"]:
        there = set(instructions.split())
        lacking = sorted(there - here)
        more = sorted(name for name in here - there if name.startswith(("avx", "amx", "sve")))
        if lacking:
            yield Difference("CPU", f"with {' '.join(lacking[:5])}", "without", _REBUILT, reason=Reason.OTHER_CPU)
        elif more:
            yield Difference("CPU", f"without {' '.join(more[:5])}", "with", _REBUILT)


def check_servers(baseline: Baseline) -> Iterator[Difference]:
    """Differences of the releases of vLLM and SGLang."""
    made = baseline.made
    for name, version in ((name, made[name]) for name in packing.SERVERS if name in made):
        here = provenance.find_version(name)
        if here != version:
            remedy = f"pip install {name}=={version}  # or fill the cache with this one"
            yield Difference(name, version, here or "none", remedy)


def check_parts(baseline: Baseline) -> Iterator[Difference]:
    """Yield differences of settings, versions, threads and places; one for all settings that a variable decides."""
    keys, here, has_libraries = baseline.keys, baseline.local_environment, bool(baseline.baked["builds"]["cpu"])
    variables: dict[str, list[str]] = {}
    for name, values in keys["parts"].items():
        digest, text = here.parts.get(name, ("", "none"))
        if name == "device" or list(values) == [digest] or (name.startswith(PLACE) and not has_libraries):
            continue
        if digest in values:
            others = " or ".join(value for other, value in values.items() if other != digest)
            remedy = "safecache stats  # after a start: the other part can hit here"
            yield Difference(f"{name} of a part of it", others, text, remedy, misses=False)
            continue
        shown = " or ".join(dict.fromkeys(values.values()))
        variable = _find_variable(name, keys["environment"], here)
        if variable and name.startswith(of_records.CONFIGS):
            variables.setdefault(variable, []).append(f"{name}: {shown} there, {text} here")
        else:
            yield Difference(name, shown, text, _find_remedy(name, shown))
    for variable, settings in variables.items():
        yield _compare_variable(variable, keys["environment"], here.parts, f" ({'; '.join(settings)})")


def _find_remedy(name: str, shown: str) -> str:
    if name == "number of CPU threads":
        return f"export OMP_NUM_THREADS={shlex.quote(shown.partition(' or ')[0])}  # there and here"
    if name.startswith(PLACE):
        return "ln -s HERE THERE  # or install it at that path: the keys of libraries have it"
    known = of_records.find_path(name)
    if known is not None:
        return f"{known.path}: {known.remedy}"
    if name.startswith(of_records.CONFIGS):
        return "set it as it was there, by its variable or in a sitecustomize: the program does not choose it"
    return _REBUILT


def _find_variable(name: str, environment: Mapping[str, dict[str, str]], here: Here) -> str:
    """The variable that is named after the setting, and differs; "" if there is none."""
    last = name.rpartition(" ")[2].rpartition(".")[2].upper()
    known = {*environment, *(each for each in here.parts if each.startswith(ENVIRONMENT))}
    candidates = [each for each in sorted(known) if each.endswith(last) and _has_changed(each, environment, here.parts)]
    return candidates[0] if candidates else ""


def _has_changed(name: str, there: Mapping[str, dict[str, str]], here: Mapping[str, tuple[str, str]]) -> bool:
    return here.get(name, _UNSET)[0] not in there.get(name, {"": "unset"})


def _compare_variable(
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
    if UNSHOWN in values.values():
        remedy = f"export {variable}=VALUE  # as it was there"
    return Difference(f"{variable}{which}", " or ".join(values.values()), here.get(name, _UNSET)[1], remedy, misses)


def check_vllm(baseline: Baseline) -> Iterator[Difference]:
    """Yield differences of vLLM's variables, which may be in its own key, or decide what is compiled."""
    environment, here = baseline.keys["environment"], baseline.local_environment
    known = {*environment, *(name for name in here.parts if name.startswith(ENVIRONMENT))}
    for name in sorted(each for each in known if each.startswith(f"{ENVIRONMENT}VLLM_")):
        if not of_records.is_of_place(name) and _has_changed(name, environment, here.parts):
            yield _compare_variable(name, environment, here.parts, misses=False)


def check_kernels(baseline: Baseline) -> Iterator[Difference]:
    """Differences in the keys of Triton's kernels, and of its compilers."""
    keys, here = baseline.keys, baseline.local_environment
    kernels = keys["kernels"]
    if not kernels:
        return
    for name in sorted({*kernels, *here.kernels}):
        if name.startswith(ENVIRONMENT) and _has_changed(name, kernels, here.kernels):
            yield _compare_variable(name, kernels, here.kernels, " (in the keys of Triton's kernels)")
        elif not name.startswith(ENVIRONMENT) and here.kernels.get(name, _UNSET)[0] not in kernels.get(name, {}):
            shown = " or ".join(kernels.get(name, {}).values())
            yield Difference(name, shown, here.kernels.get(name, ("", "none"))[1], _REBUILT)
    for target, digests in keys["compilers"].items():
        found = here.compilers.get(target, "")
        if found not in digests:
            remedy = "unset TRITON_PTXAS_PATH TRITON_PTXAS_BLACKWELL_PATH  # or use the Triton and ptxas from there"
            yield Difference(f"Triton's compiler for {target}", UNSHOWN, UNSHOWN, remedy, misses=bool(found))


def check_device(baseline: Baseline) -> Iterator[Difference]:
    """A GPU's name is in the keys of graphs, besides its architecture."""
    gpus = baseline.gpus
    there = set(baseline.keys["parts"].get("device", {}).values())
    here = {each for gpu in gpus for each in (gpu.name, f"{gpu.name} {gpu.architecture}")}
    if there and here and there.isdisjoint(here):
        yield Difference(
            "GPU's name", " or ".join(sorted(there)), " or ".join(sorted({gpu.name for gpu in gpus})), _REBUILT
        )
