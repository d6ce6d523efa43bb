"""What the parts of cache keys are in this environment that do not depend on a graph, as another process computes them.

Torch computes them, from no graph, in a process of its own that sees no GPU: asking for one would initialise CUDA.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from safecache.errors import SafecacheError
from safecache.explain import components, key_records
from safecache.explain.key_records import Component
from safecache.settings import children, config
from safecache.signing import provenance

__all__ = ["Here", "compute", "main"]

# Seconds. Importing torch from a cold disk takes a minute.
_PATIENCE = 300.0
# Nothing of safecache's is needed there, and no GPU may be seen.
_WITHOUT: Mapping[str, str] = {"SAFECACHE": "0", "CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
_HIDDEN = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


class Here(NamedTuple):
    """``parts``: by name, with their digests and texts; ``kernels``: the same of Triton's keys.

    ``compilers``: the digest of Triton's backend for each target that was asked for, "" for one that it lacks.
    """

    parts: dict[str, tuple[str, str]]
    kernels: dict[str, tuple[str, str]]
    compilers: dict[str, str]


def compute(targets: Iterable[str]) -> Here:
    """Of this environment. ``targets``: of kernels, such as "cuda 90". Raises SafecacheError if torch does not load."""
    command = [sys.executable, "-c", "from safecache.explain import here; here.main()", *targets]
    environment = {**config.child_environment(), **_WITHOUT}
    try:
        # A thread count that the environment sets is part of a key, and so is one that it does not.
        process = subprocess.run(
            command, **children.apart(environment), capture_output=True, text=True, timeout=_PATIENCE
        )
        stated = json.loads(process.stdout.splitlines()[-1]) if process.returncode == 0 else None
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError) as error:
        raise SafecacheError(f"what keys are made of here could not be computed: {error}") from error
    if stated is None:
        last = (process.stderr.strip().splitlines() or [f"status {process.returncode}"])[-1]
        raise SafecacheError(f"what keys are made of here could not be computed: {last}")
    parts, kernels = (
        {name: (one, other) for name, (one, other) in stated[each].items()} for each in ("parts", "kernels")
    )
    return Here(parts, kernels, stated["compilers"])


def main() -> None:
    """Print it, as JSON, for the targets that the arguments name."""
    torch: Any = importlib.import_module("torch")
    found = [*_of_torch(torch), *components.places(os.path.dirname(str(torch.__file__)))]
    kernels, compilers = _of_triton(sys.argv[1:])
    # Up to 2.13 torch leaves Triton out of a key where there is no GPU. What it puts in is what Triton does.
    stated = {"parts": _by_name([*kernels[:1], *found]), "kernels": _by_name(kernels), "compilers": compilers}
    print(json.dumps(stated))


def _by_name(found: Iterable[Component]) -> dict[str, tuple[str, str]]:
    return {each.name: (each.digest, each.text) for each in found}


def _of_torch(torch: Any) -> tuple[Component, ...]:
    """The names and arguments are those of torch 2.11 to 2.15: see codecache.py there."""
    functorch: Any = importlib.import_module("torch._functorch.config")
    codecache: Any = importlib.import_module("torch._inductor.codecache")
    # With a tensor on a CPU, or the number of threads would be left out.
    details = codecache.FxGraphHashDetails(None, [torch.ones(1)], {}, [])
    pickler = codecache.FxGraphCachePickler(torch.fx.GraphModule({}, torch.fx.Graph()))
    settings = functorch.save_config_portable(ignore_private_configs=False)
    environ = {name: text for name, text in config.environment().items() if name not in _HIDDEN}
    cuda = [key_records.plain("cuda", str(torch.version.cuda))] if torch.version.cuda else []
    hip = [key_records.plain("hip", str(torch.version.hip))] if torch.version.hip else []
    lines = pickler.debug_lines(details)
    return (*components.components(lines, provenance.describe(), settings, environ), *cuda, *hip)


def _of_triton(targets: Iterable[str]) -> tuple[list[Component], dict[str, str]]:
    try:
        version = importlib.import_module("triton").__version__
    except ImportError:
        return [], {}
    binding, compiler = (importlib.import_module(f"triton.{name}") for name in ("_C.libtriton", "compiler.compiler"))
    target_type = importlib.import_module("triton.backends.compiler").GPUTarget
    triton_key = importlib.import_module("triton.runtime.cache").triton_key
    found = [components.triton_part(triton_key(), version)]
    variables = sorted(binding.get_cache_invalidating_env_vars().items())
    found += [components.variable_part(name, value) for name, value in variables]
    compilers = {}
    for target in targets:
        backend, _, arch = target.partition(" ")
        try:
            made = compiler.make_backend(target_type(backend, int(arch) if arch.isdecimal() else arch, 32))
            compilers[target] = key_records.digest(str(made.hash()))
        except Exception:  # of a backend that this Triton lacks, or a compiler that it cannot run
            compilers[target] = ""
    return found, compilers
