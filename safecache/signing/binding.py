"""Whether what was built in one place may run in another: what a seal says of the build, CPU included, against here."""

from __future__ import annotations

import functools
import platform
import re
from collections.abc import Mapping

from safecache.reporting.kinds import Kind, Reason
from safecache.signing import provenance

__all__ = ["instructions", "mismatch", "statement"]

_USER_INSTRUCTIONS = re.compile(
    r"(s?sse|avx|amx|fma|f16c|bmi|abm|adx|v?aes|v?pclmul|sha|gfni|movbe|movdir|popcnt|rd(rand|seed)|xsave|cl(fl|wb)|sm[34])"
)


@functools.lru_cache(maxsize=1)
def instructions() -> str:
    """The instruction sets that this CPU has and a compiler may use, with the machine's name, as Linux lists them."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            lines = re.findall(r"(?m)^(flags|Features)\s*: (.*)$", file.read())
    except OSError:
        lines = []
    is_x86 = bool(lines) and lines[0][0] == "flags"
    listed = lines[0][1].split() if lines else []
    names = [name for name in listed if not is_x86 or _USER_INSTRUCTIONS.match(name)]
    return " ".join(sorted({platform.machine(), *names}))


# What must be the same. Triton names a kernel by the GPU that it is for, and takes it whatever the torch. Inductor
# names a library by its source and flags alone, and not by torch's headers. The last two are not executed.
_MATTERS = {
    Kind.KERNEL: ("machine", "triton"),
    Kind.KNOWN_BAD: ("machine", "triton"),
    Kind.NATIVE_CODE: ("machine", "torch", "cpu"),
    # Their interface to torch is stable, and torch itself warns of another GPU.
    Kind.PACKAGE: ("machine", "cpu"),
    Kind.PGO_STATE: (),
    Kind.MEMO: (),
}
_ALL = ("machine", "torch", "triton", "gpu")


def statement(kind: Kind) -> dict[str, str]:
    """The provenance to seal into something of this kind now."""
    here = provenance.describe()
    return {**here, "cpu": instructions()} if "cpu" in _MATTERS.get(kind, _ALL) else here


def mismatch(kind: Kind, stated: Mapping[str, str]) -> tuple[Reason, str] | None:
    """Why what was built where ``stated`` says may not run here, as a clause for a person; None if it may.

    What is not known, there or here, is no objection: such as the architecture of the GPU before CUDA is initialised.
    """
    here = statement(kind)
    for name in _MATTERS.get(kind, _ALL):
        objection = _objection(kind, name, stated.get(name, ""), here[name])
        if objection is not None:
            return objection
    return None


def _objection(kind: Kind, name: str, there: str, here: str) -> tuple[Reason, str] | None:
    if not there or not here or there == here:
        return None
    if name == "cpu":  # -march=native
        missing = sorted(set(there.split()) - set(here.split()))
        text = f"it was built on a CPU with {' '.join(missing[:5])}, which this one lacks"
        return (Reason.OTHER_CPU, text) if missing else None
    if name == "gpu":
        text = f"it was compiled for {there}, and this process has {here}"
        return (Reason.OTHER_GPU, text) if set(there.split(",")).isdisjoint(here.split(",")) else None
    # A library lies under its name from one release of torch to the next: that is no fault.
    reason = Reason.OUTDATED if kind is Kind.NATIVE_CODE and name == "torch" else Reason.OTHER_BUILD
    return reason, f"it was built with {name} {there}, and this process has {here}"
