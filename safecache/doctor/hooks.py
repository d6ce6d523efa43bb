"""The versions that are installed, and what the hooks do on that torch: asked of a process that imports it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping

from safecache._version import __version__
from safecache.doctor import finding
from safecache.doctor.finding import Finding
from safecache.patching import targets
from safecache.signing import provenance

__all__ = ["TIMEOUT", "check_hooks", "check_versions"]

_KNOWN = {"torch": (targets.TORCH_FROM, targets.TORCH_UNTIL), "triton": (targets.TRITON_FROM, targets.TRITON_UNTIL)}


def check_versions(_: Mapping[str, str]) -> Iterator[Finding]:
    """A torch or Triton that is missing or that safecache does not know."""
    installed = provenance.describe()
    if not installed["torch"]:
        yield finding.error("no-torch", "torch is not installed where this Python looks.", "pip install torch")
    for name, (first, end) in _KNOWN.items():
        release = _release(installed[name])
        if installed[name] and not first <= release < end:
            known = f"{_text(first)} to {end[0]}.{end[1] - 1}"
            evidence = f"{name} {installed[name]} is none of {known}, on which safecache {__version__} was tested: "
            evidence += "hooks whose functions have changed stand down."
            yield finding.warning(f"unknown-{name}", evidence, "pip install --upgrade safecache")
    said = ", ".join(f"{name} {installed[name] or 'none'}" for name in ("torch", "triton", "python"))
    yield finding.ok("versions", f"safecache {__version__}, {said}, {installed['machine']}.")


def _release(version: str) -> tuple[int, int]:
    digits = re.match(r"(\d+)\.(\d+)", version)
    return (int(digits[1]), int(digits[2])) if digits else (0, 0)


def _text(release: tuple[int, int]) -> str:
    return f"{release[0]}.{release[1]}"


TIMEOUT = 180  # seconds; torch without compiled sources, over a network, takes its time
_SHOWN = 3
_WELL = ("active", "in the source", "not for this torch")


def check_hooks(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Hooks that stand down, and modules of torch that cannot be imported."""
    if not provenance.torch_version():
        return  # the check of versions says so
    try:
        # That process makes a key and caches where it is told to: they are not to be those of the user.
        place = tempfile.mkdtemp(prefix="safecache-doctor-")
    except OSError as error:
        evidence = f"torch was not imported, since no temporary directory can be made: {error.strerror}."
        yield finding.info("hooks-not-examined", evidence)
        return
    try:
        said = _status(dict(environ), place)
    except subprocess.TimeoutExpired:
        evidence = f"torch is not imported within {TIMEOUT} s."
        yield finding.error("torch-not-imported", evidence, "time python -X importtime -c 'import torch'")
        return
    finally:
        shutil.rmtree(place, ignore_errors=True)
    try:
        hooks = json.loads(said.stdout.splitlines()[-1])["hooks"]
    except (IndexError, ValueError, KeyError):
        last = (said.stderr.strip().splitlines() or [f"it ends with {said.returncode}"])[-1]
        yield finding.error("torch-not-imported", f"The import of torch ends its process: {last}.", _AGAIN)
        return
    yield from _standing_down(hooks)


_AGAIN = "python -X faulthandler -m safecache status"


def _status(environment: dict[str, str], place: str) -> subprocess.CompletedProcess[str]:
    own = {
        "XDG_CONFIG_HOME": "config",
        "TORCHINDUCTOR_CACHE_DIR": "inductor",
        "TRITON_CACHE_DIR": "triton",
    }
    environment = {name: value for name, value in environment.items() if not name.startswith("SAFECACHE_")}
    environment |= {name: os.path.join(place, folder) for name, folder in own.items()}
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    paths = [environment.get("PYTHONPATH", ""), package]
    environment |= {
        "SAFECACHE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    command = [sys.executable, "-m", "safecache", "status", "--json"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace", timeout=TIMEOUT)


def _standing_down(hooks: list[dict[str, str]]) -> Iterator[Finding]:
    by_reason = defaultdict(list)
    for hook in hooks:
        if hook["state"] not in _WELL:
            by_reason[hook["reason"] or hook["state"]].append(hook["name"])
    for reason, names in by_reason.items():
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        evidence = f"{', '.join(names[:_SHOWN])}{more} work as in stock torch: {reason}."
        yield finding.warning("hook-standing-down", evidence, "safecache status")
    active = sum(hook["state"] in ("active", "in the source") for hook in hooks)
    if not by_reason:
        yield finding.ok("hooks", f"All {active} hooks are active.")
