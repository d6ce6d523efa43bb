"""Which instructions this CPU has: what code that was compiled with -march=native may rely on."""

from __future__ import annotations

import functools
import platform
import re

__all__ = ["instructions"]

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
