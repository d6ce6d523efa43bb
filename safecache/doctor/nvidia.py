"""What Triton needs for an NVIDIA GPU: libcuda, sought as Triton does, and ptxas.

Source: ``libcuda_dirs`` in triton/backends/nvidia/driver.py and ``env_nvidia_tool`` in triton/knobs.py, the same in
triton 3.6 to 3.9.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.machinery import PathFinder

from safecache.doctor import finding, programs
from safecache.doctor.finding import Finding

__all__ = ["check"]

_DEVICE = "/dev/nvidiactl"
_LDCONFIG = "/sbin/ldconfig"
_LIBRARY = "libcuda.so.1"
_TIMEOUT = 30  # seconds
_INSTALL = "ldconfig  # after the driver's libraries were installed; a container is given its compute capability"
_LOAD = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"
_TOOLS = {"ptxas": "TRITON_PTXAS_PATH", "ptxas-blackwell": "TRITON_PTXAS_BLACKWELL_PATH"}


def check(environ: Mapping[str, str]) -> Iterator[Finding]:
    """A driver's library that is missing or does not load, and a ptxas that does not run."""
    folder = _triton()
    if folder is None:
        yield finding.info("no-triton", "Triton is not installed: nothing is compiled for GPUs.")
        return
    named = environ.get("TRITON_LIBCUDA_PATH") or None
    if os.path.exists(_DEVICE) or named:
        yield from _driver(environ, named)
    else:
        yield finding.info("no-nvidia-device", f"{_DEVICE} does not exist: there is no NVIDIA GPU here.")
    for tool, variable in _TOOLS.items():
        yield from _tool(os.path.join(folder, "backends", "nvidia", "bin", tool), variable, environ.get(variable))


def _triton() -> str | None:
    """Where it is installed, found without importing it."""
    spec = PathFinder.find_spec("triton")
    return None if spec is None or not spec.submodule_search_locations else spec.submodule_search_locations[0]


def _driver(environ: Mapping[str, str], named: str | None) -> Iterator[Finding]:
    if named is None and not os.access(_LDCONFIG, os.X_OK):
        evidence = f"Triton asks {_LDCONFIG} where {_LIBRARY} is, and there is none that can be run."
        yield finding.error("no-ldconfig", evidence, f"export TRITON_LIBCUDA_PATH=DIR  # with {_LIBRARY} in it")
        return
    places = [named] if named else _listed() or environ.get("LD_LIBRARY_PATH", "").split(":")
    found = [path for path in (os.path.join(place, _LIBRARY) for place in places if place) if os.path.exists(path)]
    if not found:
        where = f"in TRITON_LIBCUDA_PATH={named}" if named else "by ldconfig, nor in LD_LIBRARY_PATH"
        remedy = "unset TRITON_LIBCUDA_PATH" if named else _INSTALL
        yield finding.error("no-libcuda", f"{_LIBRARY} is not found {where}: Triton cannot use the GPU.", remedy)
        return
    said = programs.objection([sys.executable, "-S", "-c", _LOAD, found[0]])
    if said is None:
        yield finding.ok("libcuda", f"{found[0]} can be loaded.")
    else:
        yield finding.error("broken-libcuda", f"{found[0]} cannot be loaded: {said}.", _INSTALL)


def _listed() -> list[str]:
    listing = subprocess.run([_LDCONFIG, "-p"], capture_output=True, timeout=_TIMEOUT).stdout.decode(errors="replace")
    return [os.path.dirname(line.split()[-1]) for line in listing.splitlines() if _LIBRARY in line]


def _tool(bundled: str, variable: str, named: str | None) -> Iterator[Finding]:
    refused = programs.objection([named, "--version"]) if named else None
    if refused is not None:
        evidence = f"{variable}={named} cannot be run ({refused}): Triton takes its own, or fails."
        yield finding.warning("ptxas-not-used", evidence, f"unset {variable}")
    said = programs.objection([bundled, "--version"]) if named is None or refused is not None else None
    if said is not None:
        evidence = f"{bundled} cannot be run ({said}): no kernel can be compiled for NVIDIA GPUs."
        yield finding.error("broken-ptxas", evidence, "pip install --force-reinstall --no-deps triton")
