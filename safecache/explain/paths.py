"""The paths that are in cache keys, and so have to be the same where a cache is used that another machine has made.

Read in torch 2.11 to 2.15 and Triton 3.6 to 3.9. All other paths (of the cache, the home, temporary files, the project)
and the user are in no key: guide/moving.md has what was measured.
"""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["PATHS", "PathInKeys", "of"]


class PathInKeys(NamedTuple):
    """``component``: its name, as components() gives it, in a regular expression; "" if it is in keys of no entry.

    ``path``: of what; ``until``: the first release in whose keys it is not, such as "Triton 3.9", or "". ``follows``:
    what is not found if it differs; ``remedy``: what to do about that.
    """

    component: str
    path: str
    follows: str
    remedy: str
    until: str = ""


_ENTRIES = "every AOTAutograd and FX graph entry is compiled anew"
_KERNELS = "every Triton kernel is compiled anew"
_UNSET = "leave it unset, or give it the same value"

PATHS: tuple[PathInKeys, ...] = (
    PathInKeys(
        r"inductor config cpp\.cxx", "the compiler, from CXX", _ENTRIES, "name it without a path, as in CXX=g++"
    ),
    PathInKeys(r"inductor config cuda\.cuda_cxx", "nvcc", _ENTRIES, _UNSET),
    PathInKeys(r"inductor config rocm\.(rocm_home|ck_dir)", "ROCm, and TORCHINDUCTOR_CK_DIR", _ENTRIES, _UNSET),
    PathInKeys(r"inductor config xpu\.oneapi_root", "oneAPI", _ENTRIES, _UNSET),
    PathInKeys(
        r"inductor config aot_inductor\.(output_path|custom_op_libs|aoti_shim_library(_path)?)",
        "what AOTInductor writes, and links against",
        _ENTRIES,
        _UNSET,
    ),
    PathInKeys(
        r"inductor config (autoheuristic_log_path|profile_bandwidth_output|triton\.proton_output_dir"
        r"|(torchinductor_)?worker_log_?path|global_cache_dir|aten_distributed_optimizations\..*_profile_path)",
        "logs and profiles: TORCHINDUCTOR_AUTOHEURISTIC_LOG_PATH, …_PROFILE_OUTPUT, …_TRITON_PROTON_OUTPUT_DIR",
        _ENTRIES,
        _UNSET,
    ),
    PathInKeys(
        r"functorch config memory_budget_pareto_dir",
        "PARTITIONER_MEMORY_BUDGET_PARETO_DIR",
        "every AOTAutograd entry is compiled anew",
        _UNSET,
    ),
    PathInKeys(
        r"env (MLIR_DUMP_PATH|LLVM_PASS_PLUGIN_PATH|TRITON_PLUGIN_PATHS)", "a variable of Triton's", _KERNELS, _UNSET
    ),
    PathInKeys(
        r"option extern_libs",
        "Triton's own libraries for AMD GPUs",
        "every Triton kernel for an AMD GPU is compiled anew",
        "install Triton at the same path",
        until="Triton 3.9",
    ),
    PathInKeys(
        "",
        "torch and Python, in the command line of the C++ compiler",
        "each C++ library (kernels for the CPU, C++ wrappers) is built anew; its entry is found",
        "install torch and Python at the same paths, such as /opt/venv",
    ),
    PathInKeys(
        "",
        "TORCH_EXTENSIONS_DIR, or else the home, in Ninja's command lines",
        "each extension of torch.utils.cpp_extension is built anew",
        "set TORCH_EXTENSIONS_DIR to the same path",
    ),
)


def of(component: str) -> PathInKeys | None:
    """What is known of the path in this component of a key, by its name; None if there is none in it."""
    return next((known for known in PATHS if known.component and re.fullmatch(known.component, component)), None)
