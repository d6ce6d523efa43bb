"""What may be written down of a cache key: digests, and text that is short and gives no secret away."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

__all__ = ["capped", "digest", "environment", "setting", "variable"]

_LONGEST = 300
_DIGITS = 16
_UNSHOWN = "(not shown)"
# Those that torch, Triton and vLLM read; and what is in Triton's own list, of those that enter its keys, beside them.
_THEIRS = re.compile(r"(PY)?TORCH|TRITON|(AOT_?)?INDUCTOR|VLLM_")
_OF_TRITON = re.compile(r"LLVM_|MLIR_|AMDGCN_|DISABLE_|NVPTX_|ALLOW_|PTXAS_")
_SECRET = re.compile(r"TOKEN|KEY|SECRET|PASS(WORD|WD|PHRASE)|CREDENTIAL|AUTH(?!OR|GRAD)|REDIS_URL", re.IGNORECASE)


def digest(content: str | bytes) -> str:
    """Enough of a SHA-256 to tell two parts of two keys apart."""
    data = content.encode(errors="backslashreplace") if isinstance(content, str) else content
    return hashlib.sha256(data).hexdigest()[:_DIGITS]


def capped(text: str) -> str:
    """As much of ``text`` as a person reads."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def variable(name: str, value: str) -> str:
    """The value of an environment variable, unless it is somebody else's or its name says that it is a secret."""
    is_theirs = _THEIRS.match(name) or _OF_TRITON.match(name)
    return setting(name, value) if is_theirs else _UNSHOWN


def setting(name: str, value: str) -> str:
    """The value of what a program says is a setting of its own, unless its name says that it is a secret."""
    return _UNSHOWN if _SECRET.search(name) else capped(value)


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Those of ``variables`` that can decide a setting of torch's, Triton's or vLLM's, as they may be shown."""
    return {name: variable(name, value) for name, value in sorted(variables.items()) if _THEIRS.match(name)}
