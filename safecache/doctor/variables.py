"""The environment: settings that are refused, unknown or at odds, and variables that turn caches off."""

from __future__ import annotations

import difflib
import os
import shlex
from collections.abc import Iterator, Mapping

from safecache.doctor import finding, places
from safecache.doctor.finding import Finding
from safecache.settings import config
from safecache.settings.settings import SETTINGS

__all__ = ["check"]

_PREFIX = "SAFECACHE_"
_VARIABLES = tuple(setting.variable for setting in SETTINGS)
# Of 1: how alike names are of which one may be meant for the other.
_NEAR, _VERY_NEAR = 0.7, 0.9

# What turns a cache off. Torch takes all but 0 and nothing for true, the words no and false as well
# (``_read_env_variable`` in torch/utils/_config_module.py); Triton and vLLM take what people do.
_OFF_IN_TORCH = ("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "TORCH_COMPILE_FORCE_DISABLE_CACHES")
_ON_IN_TORCH = ("TORCHINDUCTOR_FX_GRAPH_CACHE", "TORCHINDUCTOR_AUTOGRAD_CACHE")
_OFF_ELSEWHERE = ("TRITON_ALWAYS_COMPILE", "VLLM_DISABLE_COMPILE_CACHE")
_TRUE, _FALSE_IN_TORCH = ("1", "true", "yes", "on", "y", "t"), ("", "0")
_DIRECTORIES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TMPDIR")


def check(environ: Mapping[str, str]) -> Iterator[Finding]:
    """All that can be told by looking at the variables."""
    for variable, problem in config.problems(environ).items():
        yield finding.error("bad-setting", f"{problem}.", f"unset {variable}")
    yield from _unknown(environ)
    yield from _disabled(environ)
    yield from _at_odds(environ)
    for variable in _DIRECTORIES:
        path = environ.get(variable, "")
        if path and not os.path.isabs(path):
            evidence = f"{variable}={path} is a relative path: another directory in each working directory."
            remedy = f"export {variable}={shlex.quote(os.path.abspath(path))}"
            yield finding.warning("relative-directory", evidence, remedy)


def _unknown(environ: Mapping[str, str]) -> Iterator[Finding]:
    for name in sorted(environ.keys() - set(_VARIABLES)):
        is_ours = name.upper().startswith(_PREFIX)
        near = difflib.get_close_matches(name.upper(), _VARIABLES, n=1, cutoff=_NEAR if is_ours else _VERY_NEAR)
        if is_ours or near:
            remedy = f"export {near[0]}={shlex.quote(environ[name])}; unset {name}" if near else f"unset {name}"
            meant = f"; {near[0]} is one" if near else ""
            yield finding.warning("unknown-setting", f"{name} is no setting, and has no effect{meant}.", remedy)


def _disabled(environ: Mapping[str, str]) -> Iterator[Finding]:
    off = [name for name in _OFF_IN_TORCH if environ.get(name, "") not in _FALSE_IN_TORCH]
    off += [name for name in _ON_IN_TORCH if environ.get(name) in _FALSE_IN_TORCH]
    off += [name for name in _OFF_ELSEWHERE if environ.get(name, "").lower() in _TRUE]
    for name in off:
        evidence = f"{name}={environ[name]} turns a cache off: what it would hold is compiled in each process."
        yield finding.warning("cache-disabled", evidence, f"unset {name}")


def _at_odds(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Settings of which one makes another useless."""
    settings = config.current()
    given = [variable for variable in _VARIABLES if variable != "SAFECACHE" and environ.get(variable)]
    if not settings.enabled:
        rest = f", nor do {', '.join(given)}" if given else ""
        evidence = f"SAFECACHE={environ['SAFECACHE']}: safecache does nothing{rest}."
        yield finding.warning("switched-off", evidence, "unset SAFECACHE")
    if settings.shared and settings.trust == "private":
        evidence = "SAFECACHE_TRUST=private has no effect with SAFECACHE_SHARED=1: nothing there is private."
        yield finding.warning("settings-at-odds", evidence, "unset SAFECACHE_TRUST")
    if not settings.isolate:
        for variable in ("SAFECACHE_COMPILE_TIMEOUT", "SAFECACHE_COMPILE_MEMORY"):
            if variable in given:
                evidence = f"{variable}={environ[variable]} has no effect without SAFECACHE_ISOLATE=1."
                remedy = f"export SAFECACHE_ISOLATE=1  # or unset {variable}"
                yield finding.warning("settings-at-odds", evidence, remedy)
    for place in places.caches(environ):
        if any(os.path.realpath(layer) == os.path.realpath(place.path) for layer in settings.lower):
            evidence = f"SAFECACHE_LOWER names {place}, which is the cache itself."
            yield finding.warning("settings-at-odds", evidence, "Name a layer in SAFECACHE_LOWER that is not written.")
