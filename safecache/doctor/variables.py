"""The environment: settings that are refused, unknown or at odds, and variables that turn caches off."""

from __future__ import annotations

import difflib
import os
import shlex
from collections.abc import Iterator, Mapping

from safecache import config
from safecache.doctor import finding, places
from safecache.doctor.finding import Finding
from safecache.settings import SETTINGS

__all__ = ["check"]

_PREFIX = "SAFECACHE_"
_VARIABLES = tuple(setting.variable for setting in SETTINGS)
# Of 1: how alike names are of which one may be meant for the other.
_NEAR, _VERY_NEAR = 0.7, 0.9
_TRUE = ("1", "true", "yes", "on", "y", "t")  # as torch and Triton read switches

# What turns a cache off, by the values that do: of torch/compiler/config.py, torch/_inductor/config.py,
# torch/_functorch/config.py, triton/knobs.py and vllm/envs.py.
_OFF = {
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES": (_TRUE, "Inductor and AOTAutograd keep nothing"),
    "TORCH_COMPILE_FORCE_DISABLE_CACHES": (_TRUE, "Inductor and AOTAutograd keep nothing"),
    "TORCHINDUCTOR_FX_GRAPH_CACHE": (("0", "false"), "Inductor keeps no graphs"),
    "TORCHINDUCTOR_AUTOGRAD_CACHE": (("0", "false"), "AOTAutograd keeps no entries"),
    "TRITON_ALWAYS_COMPILE": (_TRUE, "Triton compiles each kernel anew"),
    "VLLM_DISABLE_COMPILE_CACHE": (_TRUE, "vLLM keeps nothing that it compiles"),
}
_DIRECTORIES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TMPDIR")


def check(environ: Mapping[str, str]) -> Iterator[Finding]:
    """All that can be told by looking at the variables."""
    for variable, problem in config.problems(environ).items():
        yield finding.error("bad-setting", f"{problem}.", f"unset {variable}")
    yield from _unknown(environ)
    yield from _disabled(environ)
    yield from _at_odds(environ)
    for variable in _DIRECTORIES:
        if environ.get(variable) and not os.path.isabs(environ[variable]):
            evidence = (
                f"{variable}={environ[variable]} is a relative path: another directory in each working directory."
            )
            yield finding.warning(
                "relative-directory", evidence, f"export {variable}={os.path.abspath(environ[variable])}"
            )


def _unknown(environ: Mapping[str, str]) -> Iterator[Finding]:
    for name in sorted(environ.keys() - set(_VARIABLES)):
        is_ours = name.upper().startswith(_PREFIX)
        near = difflib.get_close_matches(name.upper(), _VARIABLES, n=1, cutoff=_NEAR if is_ours else _VERY_NEAR)
        if is_ours or near:
            remedy = f"export {near[0]}={shlex.quote(environ[name])}; unset {name}" if near else f"unset {name}"
            meant = f"; {near[0]} is one" if near else ""
            yield finding.warning("unknown-setting", f"{name} is no setting, and has no effect{meant}.", remedy)


def _disabled(environ: Mapping[str, str]) -> Iterator[Finding]:
    for variable, (values, effect) in _OFF.items():
        if environ.get(variable, "").lower() in values:
            yield finding.warning("cache-disabled", f"{variable}={environ[variable]}: {effect}.", f"unset {variable}")


def _at_odds(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Settings of which one makes another useless."""
    settings = config.current()
    given = [variable for variable in _VARIABLES if variable != "SAFECACHE" and environ.get(variable)]
    if not settings.enabled:
        rest = f", nor do {', '.join(given)}" if given else ""
        yield finding.warning(
            "switched-off", f"SAFECACHE={environ['SAFECACHE']}: safecache does nothing{rest}.", "unset SAFECACHE"
        )
    if settings.shared and settings.trust == "private":
        evidence = (
            "SAFECACHE_TRUST=private has no effect with SAFECACHE_SHARED=1: what several can write is not private."
        )
        yield finding.warning("settings-at-odds", evidence, "unset SAFECACHE_TRUST")
    if not settings.isolate:
        for variable in ("SAFECACHE_COMPILE_TIMEOUT", "SAFECACHE_COMPILE_MEMORY"):
            if variable in given:
                evidence = f"{variable}={environ[variable]} has no effect without SAFECACHE_ISOLATE=1."
                yield finding.warning("settings-at-odds", evidence, f"export SAFECACHE_ISOLATE=1, or unset {variable}")
    for place in places.caches(environ):
        if any(os.path.realpath(layer) == os.path.realpath(place.path) for layer in settings.lower):
            evidence = f"SAFECACHE_LOWER names {place}, which is the cache itself."
            yield finding.warning("settings-at-odds", evidence, "Name a layer in SAFECACHE_LOWER that is not written.")
