"""Checks of settings and other variables, of signing keys, and of the Redis server of a remote cache."""

from __future__ import annotations

import difflib
import importlib.util
import os
import shlex
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from safecache.doctor import directories, finding
from safecache.doctor.finding import Finding
from safecache.settings import config, units
from safecache.settings.settings import OBSERVE
from safecache.signing import keyring, keys
from safecache.signing.keys import Algorithm

__all__ = [
    "check_combinations",
    "check_expiry",
    "check_key_place",
    "check_keys",
    "check_names",
    "check_remote_cache",
    "check_switches",
    "check_variables",
    "has_key",
]

_PREFIX = "SAFECACHE_"
# Similarity, from 0 to 1, above which one name may be meant for another.
_NEAR, _VERY_NEAR = 0.7, 0.9

# What turns a cache off. To torch all values but 0 and the empty one are true, even "no" and "false"
# (``_read_env_variable`` in torch/utils/_config_module.py); Triton and vLLM read them as people do.
_OFF_IN_TORCH = ("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "TORCH_COMPILE_FORCE_DISABLE_CACHES")
_ON_IN_TORCH = ("TORCHINDUCTOR_FX_GRAPH_CACHE", "TORCHINDUCTOR_AUTOGRAD_CACHE")
_OFF_ELSEWHERE = ("TRITON_ALWAYS_COMPILE", "VLLM_DISABLE_COMPILE_CACHE")
_TRUE, _FALSE_IN_TORCH = ("1", "true", "yes", "on", "y", "t"), ("", "0")
_DIRECTORIES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TMPDIR")


def check_variables(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Findings about invalid settings, and relative directories."""
    for variable, problem in config.problems(environ).items():
        yield finding.error("bad-setting", f"{problem}.", f"unset {variable}")
    for variable in _DIRECTORIES:
        path = environ.get(variable, "")
        if path and not os.path.isabs(path):
            evidence = f"{variable}={path} is a relative path: another directory in each working directory."
            remedy = f"export {variable}={shlex.quote(os.path.abspath(path))}"
            yield finding.warning("relative-directory", evidence, remedy)


def check_names(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Findings about variables that may be meant for settings."""
    for name in sorted(environ.keys() - set(config.VARIABLES)):
        is_ours = name.upper().startswith(_PREFIX)
        near = difflib.get_close_matches(name.upper(), config.VARIABLES, n=1, cutoff=_NEAR if is_ours else _VERY_NEAR)
        if is_ours or near:
            remedy = f"export {near[0]}={shlex.quote(environ[name])}; unset {name}" if near else f"unset {name}"
            meant = f"; {near[0]} is one" if near else ""
            yield finding.warning("unknown-setting", f"{name} is no setting, and has no effect{meant}.", remedy)


def check_switches(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Findings about variables of torch, Triton and vLLM that turn a cache off."""
    off = [name for name in _OFF_IN_TORCH if environ.get(name, "") not in _FALSE_IN_TORCH]
    off += [name for name in _ON_IN_TORCH if environ.get(name) in _FALSE_IN_TORCH]
    off += [name for name in _OFF_ELSEWHERE if environ.get(name, "").lower() in _TRUE]
    for name in off:
        evidence = f"{name}={environ[name]} turns a cache off: what it would hold is compiled in each process."
        yield finding.warning("cache-disabled", evidence, f"unset {name}")


def check_combinations(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Findings about settings that have no effect, or make another useless."""
    settings = config.current()
    given = [variable for variable in config.VARIABLES if variable != "SAFECACHE" and environ.get(variable)]
    if not settings.enabled:
        rest = f", nor do {', '.join(given)}" if given else ""
        evidence = f"SAFECACHE={environ['SAFECACHE']}: safecache does nothing{rest}."
        yield finding.warning("switched-off", evidence, "unset SAFECACHE")
    if environ.get("SAFECACHE", "").strip().lower() == OBSERVE:
        evidence = "SAFECACHE=observe: files that do not verify are reported and used, as in stock torch."
        yield finding.warning(
            "observing", evidence, "safecache stats  # says what would be refused; then unset SAFECACHE"
        )
    if settings.shared and settings.trust == "private":
        evidence = "SAFECACHE_TRUST=private has no effect in a shared cache: nothing there is private."
        yield finding.warning("settings-at-odds", evidence, "export SAFECACHE_TRUST=shared")
    if not settings.isolate:
        for name in ("compile_timeout", "compile_memory"):
            if getattr(settings, name) is not None:
                part = name.removeprefix("compile_")
                evidence = f"The {part} of a compile has no effect without SAFECACHE_ISOLATE=1."
                yield finding.warning("settings-at-odds", evidence, f"export SAFECACHE_ISOLATE=1,{part}=…")
    for place in directories.caches(environ):
        if any(os.path.realpath(layer) == os.path.realpath(place.path) for layer in settings.layers):
            evidence = f"SAFECACHE_TIERS names {place}, which is the cache itself."
            yield finding.warning("settings-at-odds", evidence, "Name a directory there that is not written.")


_SOON = 14 * 86400.0


def has_key() -> bool:
    """Whether this user has a signing key, or names one: if so, asking for it does not generate one."""
    settings = config.current()
    own = settings.config_home and os.path.join(settings.config_home, "safecache", "sealing.key")
    return settings.key_file is not None or bool(own and os.path.lexists(own))


def check_keys(_: Mapping[str, str]) -> Iterator[Finding]:
    """Findings about keys that are missing or refused."""
    if not has_key():
        yield from _none_yet()
        return
    ring = keyring.current(tell=False)
    if ring.signing is not None:
        yield finding.ok("key", f"Entries are sealed with key {ring.signing.id.hex()}.")
    elif ring.is_verifier:
        evidence = f"{ring.problem}: what it has sealed is used, and nothing is added."
        yield finding.info("seals-nothing", evidence)
    else:
        evidence = f"Nothing can be sealed, and so nothing is kept: {ring.problem}."
        yield finding.error("no-key", evidence, "safecache keys")
    for problem in ring.problems:
        if problem != ring.problem:
            yield finding.warning("key-refused", f"{problem}.", "safecache keys")


def _none_yet() -> Iterator[Finding]:
    home = config.current().config_home
    remedy = "export SAFECACHE_KEY_FILE=FILE  # such as a mounted secret; or XDG_CONFIG_HOME=DIR, one that is kept"
    if home is None:
        evidence = "This user has no home directory to keep a key in: nothing can be sealed, and so nothing is kept."
        yield finding.error("no-key-directory", evidence, remedy)
        return
    directory = os.path.join(home, "safecache")
    above = directories.nearest(directory)
    if not os.path.isdir(above) or not os.access(above, os.W_OK | os.X_OK, effective_ids=True):
        evidence = f"A key is to be made in {directory}, and {above} cannot be written: nothing can be sealed or kept."
        yield finding.error("no-key-directory", evidence, remedy)
        return
    yield finding.info("no-key-yet", f"The first compile makes a key in {directory}.", "")


def check_expiry(_: Mapping[str, str]) -> Iterator[Finding]:
    """Findings about keys that are about to expire, and those that cannot be verified with."""
    if not has_key():
        return
    ring = keyring.current(tell=False)
    for key in [key for _, key in sorted(ring.trusted.items())]:
        left = None if key.expires is None else key.expires - time.time()
        if left is not None and 0 < left < _SOON and key.revoked is None:
            evidence = f"Key {key.id.hex()} {key.name} expires on {units.write_time(key.expires or 0)}: what it has "
            evidence += "sealed is refused from then on."
            remedy = "safecache sign DIR  # with the next key, once that is trusted"
            yield finding.warning("key-expires-soon", evidence, remedy)
    needs_library = any(key.algorithm is Algorithm.ED25519 and key.revoked is None for key in ring.trusted.values())
    problem = keys.problem() if needs_library else None
    if problem:
        yield finding.error("no-cryptography", f"{problem}.", "pip install 'safecache[sign]'")


def check_key_place(environ: Mapping[str, str]) -> Iterator[Finding]:
    """A finding about a key that is stored inside a cache."""
    path = config.current().key_file
    for place in directories.caches(environ):
        if path is not None and os.path.realpath(path).startswith(os.path.join(os.path.realpath(place.path), "")):
            evidence = f"The key {path} is in {place}: anyone who can read or copy the cache may get the key."
            remedy = f"mv {shlex.quote(path)} FILE; export SAFECACHE_KEY_FILE=FILE  # outside of all caches"
            yield finding.warning("key-beside-cache", evidence, remedy)


_TIMEOUT = 3.0  # seconds, for connecting, and for each answer
_SLOW = 0.1
_PORT = 6379
_INSTALL = "pip install redis"
_SWITCHES = (
    "TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE",
    "TORCHINDUCTOR_AUTOGRAD_REMOTE_CACHE",
    "TORCHINDUCTOR_AUTOTUNE_REMOTE_CACHE",
    "TORCHINDUCTOR_BUNDLED_AUTOTUNE_REMOTE_CACHE",
)


class _Server(NamedTuple):
    """A Redis server; ``variable``: the one that names it."""

    url: str
    variable: str

    def __str__(self) -> str:
        # Without the user and the password.
        url = urlsplit(self.url)
        return f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}"


def check_remote_cache(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Findings about the configured Redis servers: no client, no answer, a refusal, or slow answers."""
    switches = [name for name in _SWITCHES if environ.get(name) == "1"]
    triton = "redis" in environ.get("TRITON_REMOTE_CACHE_BACKEND", "").lower()
    servers = list(_servers(environ, bool(switches), triton))
    if importlib.util.find_spec("redis") is not None:
        yield from map(_tried, servers)
    elif switches or triton:
        evidence = (
            f"{(switches or ['TRITON_REMOTE_CACHE_BACKEND'])[0]} asks for Redis, and its client is not installed."
        )
        yield finding.error("no-redis-client", evidence, _INSTALL)
    elif servers:
        evidence = f"Redis at {servers[0]} was not asked: its client is not installed, and a remote cache needs it too."
        yield finding.info("no-redis-client", evidence, _INSTALL)


def _servers(environ: Mapping[str, str], for_torch: bool, for_triton: bool) -> Iterator[_Server]:
    url, host = environ.get("TORCHINDUCTOR_REDIS_URL"), environ.get("TORCHINDUCTOR_REDIS_HOST")
    if url:
        yield _Server(url, "TORCHINDUCTOR_REDIS_URL")
    elif for_torch or host:
        port = environ.get("TORCHINDUCTOR_REDIS_PORT", str(_PORT))
        yield _Server(f"redis://{host or 'localhost'}:{port}", "TORCHINDUCTOR_REDIS_HOST")
    if for_triton:
        port = environ.get("TRITON_REDIS_PORT", str(_PORT))
        yield _Server(f"redis://{environ.get('TRITON_REDIS_HOST', 'localhost')}:{port}", "TRITON_REDIS_HOST")


def _tried(server: _Server) -> Finding:
    import redis
    from redis import exceptions
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    # In redis-py a demand for a password is a kind of ConnectionError, as is a server that is still loading.
    of_access = (exceptions.AuthenticationError, exceptions.AuthorizationError)
    refused = (exceptions.ResponseError, exceptions.InvalidResponse, *of_access)
    try:
        once, limits = Retry(NoBackoff(), 0), {"socket_timeout": _TIMEOUT, "socket_connect_timeout": _TIMEOUT}
        with redis.Redis.from_url(server.url, retry=once, **limits) as client:
            client.ping()  # connects
            began = time.monotonic()
            client.ping()
            took = time.monotonic() - began
    except exceptions.TimeoutError:
        evidence = f"Redis at {server} does not answer within {_TIMEOUT:g} s: each lookup waits for it."
        return finding.error("redis-hangs", evidence, _remedy(server))
    except refused as error:
        return finding.error("redis-refuses", f"What is at {server} refuses a PING: {error}.", _remedy(server))
    except (exceptions.RedisError, OSError, ValueError) as error:
        return finding.error("redis-unreachable", f"Redis at {server} cannot be reached: {error}.", _remedy(server))
    if took > _SLOW:
        evidence = f"Redis at {server} takes {1000 * took:.0f} ms to answer, and is asked for each graph."
        return finding.warning("redis-slow", evidence, _remedy(server))
    return finding.ok("redis", f"Redis at {server} answers in {1000 * took:.0f} ms.")


def _remedy(server: _Server) -> str:
    return f"unset {' '.join(_SWITCHES)}  # or correct {server.variable}"
