"""What built an entry: versions and GPU architecture, nothing that names the host or the user."""

from __future__ import annotations

import functools
import os
import platform
import re
import sys
from importlib import metadata
from importlib.machinery import PathFinder

from safecache._version import __version__

__all__ = ["describe", "torch_release", "torch_version"]


def describe() -> dict[str, str]:
    """The provenance to seal into an entry now. ``gpu`` is empty where this process has not initialised CUDA."""
    return {**_versions(), "gpu": _gpu_architectures()}


def torch_version() -> str:
    """The version of torch that is imported, or else installed, its local part included; empty if none is."""
    return str(getattr(sys.modules.get("torch"), "__version__", "")) or _version_in_file() or _installed("torch")


def _version_in_file() -> str:
    """What torch will say of itself once it is imported; the metadata of its wheels leaves out the local part."""
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
    """The major and minor version of torch; (0, 0) if it has none that can be read."""
    digits = re.match(r"(\d+)\.(\d+)", torch_version())
    return (int(digits[1]), int(digits[2])) if digits else (0, 0)


@functools.lru_cache(maxsize=1)
def _versions() -> dict[str, str]:
    return {
        "safecache": __version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "torch": torch_version(),
        "triton": _installed("triton"),
    }


def _installed(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _gpu_architectures() -> str:
    # Asking must not initialise CUDA: Inductor forks workers, and a fork with a CUDA context is unusable.
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    return _devices() if cuda is not None and cuda.is_initialized() else ""


@functools.lru_cache(maxsize=1)
def _devices() -> str:
    """Those that CUDA was initialised with: they stay the same."""
    torch = sys.modules["torch"]
    cuda = torch.cuda
    if torch.version.hip:
        names = {cuda.get_device_properties(i).gcnArchName for i in range(cuda.device_count())}
    else:
        names = {"sm_{}{}".format(*cuda.get_device_capability(i)) for i in range(cuda.device_count())}
    return ",".join(sorted(names))
