"""Provenance: what built an entry, as its seal states it, without host or user; and whether that may run here."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import re
import sys
from collections.abc import Mapping
from importlib import metadata
from importlib.machinery import PathFinder
from typing import Any

from safecache._version import __version__
from safecache.reporting.kinds import Kind, Reason

__all__ = [
    "describe",
    "digest_build",
    "digest_code",
    "find_mismatch",
    "find_version",
    "list_instructions",
    "make_json_form",
    "make_statement",
    "torch_release",
    "torch_version",
]

_USER_INSTRUCTIONS = re.compile(
    r"(s?sse|avx|amx|fma|f16c|bmi|abm|adx|v?aes|v?pclmul|sha|gfni|movbe|movdir|popcnt|rd(rand|seed)|xsave|cl(fl|wb)|sm[34])"
)


@functools.lru_cache(maxsize=1)
def list_instructions() -> str:
    """Return the machine's name and this CPU's instruction sets that compilers use, sorted, as in /proc/cpuinfo."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            lines = re.findall(r"(?m)^(flags|Features)\s*: (.*)$", file.read())
    except OSError:
        lines = []
    is_x86 = bool(lines) and lines[0][0] == "flags"
    listed = lines[0][1].split() if lines else []
    names = [name for name in listed if not is_x86 or _USER_INSTRUCTIONS.match(name)]
    return " ".join(sorted({platform.machine(), *names}))


_DIGITS = 12


def make_statement(kind: Kind) -> dict[str, str]:
    """Return the provenance to seal into an entry of this kind now; ``cpu`` is stated only for kinds bound to it."""
    here = describe()
    return {**here, "cpu": list_instructions()} if "cpu" in kind.proof.bound_to else here


def digest_build(kind: Kind) -> str:
    """Return a digest (12 hex digits) of the provenance that must match for this kind.

    The GPU is left out, since it may not be known yet.
    """
    here = make_statement(kind)
    text = "\n".join(here[name] for name in kind.proof.bound_to if name != "gpu")
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def find_mismatch(kind: Kind, stated: Mapping[str, str]) -> tuple[Reason, str] | None:
    """Return why an entry with the provenance ``stated`` may not run here, and a clause for messages; None if it may.

    A value unknown on either side is no objection, such as the GPU's architecture before CUDA is initialised.
    """
    here = make_statement(kind)
    for name in kind.proof.bound_to:
        objection = _find_objection(kind, name, stated.get(name, ""), here[name])
        if objection is not None:
            return objection
    return None


def _find_objection(kind: Kind, name: str, there: str, here: str) -> tuple[Reason, str] | None:
    if not there or not here or there == here:
        return None
    if name == "cpu":  # -march=native
        missing = sorted(set(there.split()) - set(here.split()))
        text = f"it was built on a CPU with {' '.join(missing[:5])}, which this one lacks"
        return (Reason.OTHER_CPU, text) if missing else None
    if name == "gpu":
        text = f"it was compiled for {there}, and this process has {here}"
        return (Reason.OTHER_GPU, text) if set(there.split(",")).isdisjoint(here.split(",")) else None
    # A library keeps its name from one torch release to the next: an old one is nobody's fault.
    reason = Reason.OUTDATED if kind is Kind.NATIVE_CODE and name == "torch" else Reason.OTHER_BUILD
    return reason, f"built with {name} {there}, this process runs {here}"


def describe() -> dict[str, str]:
    """Return the provenance to seal into an entry now. ``gpu`` is empty until this process has initialised CUDA."""
    return {**_list_versions(), "gpu": _find_architectures()}


def torch_version() -> str:
    """Return the version of the imported or else the installed torch, with its local part; empty if there is none."""
    return str(getattr(sys.modules.get("torch"), "__version__", "")) or _read_version() or find_version("torch")


def _read_version() -> str:
    """Return the version that torch will report once imported; the metadata of its wheels lacks the local part."""
    spec = PathFinder.find_spec("torch")
    if spec is None or spec.origin is None:
        return ""
    try:
        with open(os.path.join(os.path.dirname(spec.origin), "version.py"), encoding="utf-8") as file:
            found = re.search(r"(?m)^__version__ = '(.+)'$", file.read())
    except OSError:
        return ""
    return found[1] if found else ""


def torch_release() -> tuple[int, int]:
    """Return the major and minor version of torch; (0, 0) if it is missing or cannot be parsed."""
    digits = re.match(r"(\d+)\.(\d+)", torch_version())
    return (int(digits[1]), int(digits[2])) if digits else (0, 0)


@functools.lru_cache(maxsize=1)
def _list_versions() -> dict[str, str]:
    return {
        "safecache": __version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "torch": torch_version(),
        "triton": find_version("triton"),
    }


@functools.cache
def find_version(name: str) -> str:
    """Return the installed version of the distribution ``name``; "" if there is none."""
    try:
        described = metadata.distribution(name).read_text("METADATA") or ""
    except metadata.PackageNotFoundError:
        return ""
    # importlib parses all of the description: that of torch takes 4 ms.
    found = re.search(r"(?m)^Version: (.+)$", described)
    return found[1] if found else metadata.version(name)


def _find_architectures() -> str:
    # Asking must not initialise CUDA: Inductor forks workers, and a fork with a CUDA context is unusable.
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    return _list_devices() if cuda is not None and cuda.is_initialized() else ""


@functools.lru_cache(maxsize=1)
def _list_devices() -> str:
    """Return the architectures of CUDA's devices. Cached: the devices that CUDA was initialised with stay the same."""
    torch = sys.modules["torch"]
    cuda = torch.cuda
    if torch.version.hip:
        names = {cuda.get_device_properties(i).gcnArchName for i in range(cuda.device_count())}
    else:
        names = {"sm_{}{}".format(*cuda.get_device_capability(i)) for i in range(cuda.device_count())}
    return ",".join(sorted(names))


# What determines a call, by names that all Pythons, and torch's serializable form of a code object, have in common.
_FIELDS = (
    *("co_name", "co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_flags", "co_code"),
    *("co_consts", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_exceptiontable"),
)


def digest_code(code: Any, *, of: str = "", line: bool = False) -> str:
    """Return the SHA-256, in hex, of a code object and the text ``of``; with ``line``, of its first line number too."""
    stated = [of, make_json_form(code), code.co_firstlineno if line else None]
    return hashlib.sha256(json.dumps(stated).encode()).hexdigest()


def make_json_form(value: Any) -> Any:
    """Return a JSON form of a constant or code object, equal in all processes, and different for 1, 1.0 and True."""
    if hasattr(value, "co_code"):
        return [[name, make_json_form(getattr(value, name, None))] for name in _FIELDS]
    if isinstance(value, tuple):
        return ["tuple", *map(make_json_form, value)]
    if isinstance(value, frozenset):
        return ["frozenset", *sorted(map(make_json_form, value), key=json.dumps)]
    return [type(value).__name__, repr(value)]
