"""What is cached: the closed list of kinds, by which entries are sealed, and what to call each to a person."""

from __future__ import annotations

from enum import Enum

__all__ = ["Kind"]


class Kind(Enum):
    """What an entry is. Sealed with it, so that an entry of one cache is refused in another."""

    AOT_ENTRY = "aot_autograd"
    FX_ENTRY = "fx_graph"
    SOURCE = "source"
    NATIVE_CODE = "native_code"
    KERNEL = "kernel"
    AOT_FUNCTION = "aot_function"
    AOT_MODEL = "aot_model"
    AOT_GRAPH = "aot_graph"
    DYNAMO_PACKAGE = "dynamo_package"
    PRECOMPILED = "precompiled"
    PACKAGE = "package"
    PGO_STATE = "pgo_state"
    MEMO = "memo"
    AUTOTUNING = "autotuning"
    COMPILE_CRASH = "compile_crash"
    # Never sealed, since nothing unpickles it: here to be named when it is refused.
    OTHER = "other"

    @property
    def noun(self) -> str:
        """What to call it to a person."""
        return _NOUNS[self]


_NOUNS = {
    Kind.AOT_ENTRY: "AOTAutograd entry",
    Kind.FX_ENTRY: "FX graph entry",
    Kind.SOURCE: "generated source",
    Kind.NATIVE_CODE: "compiled code",
    Kind.KERNEL: "kernel file",
    Kind.AOT_FUNCTION: "ahead-of-time compiled function",
    Kind.AOT_MODEL: "ahead-of-time compiled model",
    Kind.AOT_GRAPH: "ahead-of-time compiled graph",
    Kind.DYNAMO_PACKAGE: "precompile entry",
    Kind.PRECOMPILED: "precompiled source and cache",
    Kind.PACKAGE: "AOTInductor package",
    Kind.PGO_STATE: "profile of dynamic shapes",
    Kind.MEMO: "memoized result",
    Kind.AUTOTUNING: "autotuning result",
    Kind.COMPILE_CRASH: "note of a crash",
    Kind.OTHER: "artifact",
}
