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
    for variable, problem in config.find_problems(environ).items():
        why = f"{problem}. `import safecache` raises ConfigError, and commands exit with 78"
        yield finding.error("bad-setting", f"{variable} is refused", why, f"unset {variable}")
    for variable in _DIRECTORIES:
        path = environ.get(variable, "")
        if path and not os.path.isabs(path):
            why = "it is another directory in each working directory. Processes started elsewhere recompile"
            remedy = f"export {variable}={shlex.quote(os.path.abspath(path))}"
            yield finding.warning("relative-directory", f"{variable}={path} is a relative path", why, remedy)


def check_names(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Findings about variables that may be meant for settings."""
    for name in sorted(environ.keys() - set(config.VARIABLES)):
        is_ours = name.upper().startswith(_PREFIX)
        near = difflib.get_close_matches(name.upper(), config.VARIABLES, n=1, cutoff=_NEAR if is_ours else _VERY_NEAR)
        if is_ours or near:
            remedy = f"export {near[0]}={shlex.quote(environ[name])}; unset {name}" if near else f"unset {name}"
            why = f"{f'{near[0]} is one' if near else 'safecache help settings lists them'}. The variable has no effect"
            yield finding.warning("unknown-setting", f"{name} is no setting", why, remedy)


def check_switches(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Findings about variables of torch, Triton and vLLM that turn a cache off."""
    off = [name for name in _OFF_IN_TORCH if environ.get(name, "") not in _FALSE_IN_TORCH]
    off += [name for name in _ON_IN_TORCH if environ.get(name) in _FALSE_IN_TORCH]
    off += [name for name in _OFF_ELSEWHERE if environ.get(name, "").lower() in _TRUE]
    for name in off:
        why = "torch, Triton or vLLM then neither reads nor writes that cache. Every process recompiles"
        yield finding.warning("cache-disabled", f"{name}={environ[name]} turns a cache off", why, f"unset {name}")


def check_combinations(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Findings about settings that have no effect, or make another useless."""
    settings = config.current()
    given = [variable for variable in config.VARIABLES if variable != "SAFECACHE" and environ.get(variable)]
    if not settings.enabled:
        rest = f", and {', '.join(given)} have no effect" if given else ""
        why = f"SAFECACHE={environ['SAFECACHE']} is set. Caches are loaded unverified{rest}"
        yield finding.warning("switched-off", "safecache is switched off", why, "unset SAFECACHE")
    if environ.get("SAFECACHE", "").strip().lower() == OBSERVE:
        why = "SAFECACHE=observe is set. Files that do not verify are reported and used, as in stock torch"
        remedy = "safecache stats  # what would be refused; then unset SAFECACHE"
        yield finding.warning("observing", "safecache only observes", why, remedy)
    if settings.shared and settings.trust == "private":
        why = "the cache is shared, so no directory in it is private. Unsealed files are refused"
        remedy = "export SAFECACHE_TRUST=shared"
        yield finding.warning("settings-at-odds", "SAFECACHE_TRUST=private has no effect", why, remedy)
    if not settings.isolate:
        for name in ("compile_timeout", "compile_memory"):
            limit, part = getattr(settings, name), name.removeprefix("compile_")
            if limit is not None:
                why = "isolation is off. A kernel's compile is not limited"
                remedy = f"export SAFECACHE_ISOLATE=1,{part}={limit:.0f}"
                yield finding.warning("settings-at-odds", f"{part}= of SAFECACHE_ISOLATE has no effect", why, remedy)
    for place in directories.list_caches(environ):
        if any(os.path.realpath(layer) == os.path.realpath(place.path) for layer in settings.layers):
            why = "it is the cache itself, not a lower tier. The tier has no effect"
            remedy = "unset SAFECACHE_TIERS  # or list directories that are only read"
            yield finding.warning("settings-at-odds", f"SAFECACHE_TIERS lists {place}", why, remedy)


_SOON = 14 * 86400.0


def has_key() -> bool:
    """Whether this user has a signing key, or names one: if so, asking for it does not generate one."""
    settings = config.current()
    own = settings.config_home and os.path.join(settings.config_home, "safecache", "sealing.key")
    return settings.key_file is not None or bool(own and os.path.lexists(own))


def check_keys(_: Mapping[str, str]) -> Iterator[Finding]:
    """Findings about keys that are missing or refused."""
    if not has_key():
        yield from _check_keyless()
        return
    ring = keyring.current(tell=False)
    if ring.signing is not None:
        yield finding.ok("key", "entries are sealed", f"the key is {ring.signing.id.hex()}")
    elif ring.is_verifier:
        why = f"{ring.problem}. Entries of that key are used, and none are saved"
        yield finding.info("seals-nothing", "this process seals nothing", why)
    else:
        why = f"{ring.problem}. {directories.LOST}"
        remedy = "export SAFECACHE_KEY_FILE=FILE  # a private key that only you can read"
        yield finding.error("no-key", "nothing can be sealed", why, remedy)
    for problem in ring.problems:
        if problem != ring.problem:
            why = f"{problem}. What that key sealed is refused"
            yield finding.warning(
                "key-refused", "a key is not used", why, "safecache keys  # lists each that is refused"
            )


def _check_keyless() -> Iterator[Finding]:
    home = config.current().config_home
    remedy = "export SAFECACHE_KEY_FILE=FILE  # such as a mounted secret; or XDG_CONFIG_HOME=DIR, one that is kept"
    directory = home and os.path.join(home, "safecache")
    above = directory and directories.find_nearest(directory)
    if not above or not os.path.isdir(above) or not os.access(above, os.W_OK | os.X_OK, effective_ids=True):
        why = f"{above} cannot be written" if above else "this user has no home directory"
        yield finding.error("no-key-directory", "no key can be made", f"{why}. {directories.LOST}", remedy)
    else:
        why = f"this user has sealed nothing so far. The first compile makes a key in {directory}"
        yield finding.info("no-key-yet", "there is no key yet", why)


def check_expiry(_: Mapping[str, str]) -> Iterator[Finding]:
    """Findings about keys that are about to expire, and those that cannot be verified with."""
    if not has_key():
        return
    ring = keyring.current(tell=False)
    for key in [key for _, key in sorted(ring.trusted.items())]:
        left = None if key.expires is None else key.expires - time.time()
        if left is not None and 0 < left < _SOON and key.revoked is None:
            why = f"at {units.write_time(key.expires or 0)}. What it sealed is refused from then on"
            remedy = "safecache sign DIR  # with the next key, once all hosts trust that"
            yield finding.warning("key-expires-soon", f"key {key.id.hex()} {key.name} expires soon", why, remedy)
    needs_library = any(key.algorithm is Algorithm.ED25519 and key.revoked is None for key in ring.trusted.values())
    problem = keys.find_problem() if needs_library else None
    if problem:
        why = f"{problem}. What they sealed is refused"
        yield finding.error("no-cryptography", "Ed25519 keys cannot be used", why, "pip install 'safecache[sign]'")


def check_key_place(environ: Mapping[str, str]) -> Iterator[Finding]:
    """A finding about a key that is stored inside a cache."""
    path = config.current().key_file
    for place in directories.list_caches(environ):
        if path is not None and os.path.realpath(path).startswith(os.path.join(os.path.realpath(place.path), "")):
            why = f"it is in {place}. Whoever copies the cache has the key, and can seal files of their own"
            remedy = f"mv {shlex.quote(path)} FILE; export SAFECACHE_KEY_FILE=FILE  # outside of all caches"
            yield finding.warning("key-beside-cache", f"the key {path} is inside a cache", why, remedy)


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
    servers = list(_list_servers(environ, bool(switches), triton))
    if importlib.util.find_spec("redis") is not None:
        yield from map(_try_server, servers)
    elif switches or triton:
        why = f"{(switches or ['TRITON_REMOTE_CACHE_BACKEND'])[0]} asks for Redis. Its lookups fail"
        yield finding.error("no-redis-client", "Redis's client is not installed", why, _INSTALL)
    elif servers:
        why = f"no check of {servers[0]} was possible. Nothing uses it, unless a remote cache is switched on"
        yield finding.info("no-redis-client", "Redis's client is not installed", why, _INSTALL)


def _list_servers(environ: Mapping[str, str], for_torch: bool, for_triton: bool) -> Iterator[_Server]:
    url, host = environ.get("TORCHINDUCTOR_REDIS_URL"), environ.get("TORCHINDUCTOR_REDIS_HOST")
    if url:
        yield _Server(url, "TORCHINDUCTOR_REDIS_URL")
    elif for_torch or host:
        port = environ.get("TORCHINDUCTOR_REDIS_PORT", str(_PORT))
        yield _Server(f"redis://{host or 'localhost'}:{port}", "TORCHINDUCTOR_REDIS_HOST")
    if for_triton:
        port = environ.get("TRITON_REDIS_PORT", str(_PORT))
        yield _Server(f"redis://{environ.get('TRITON_REDIS_HOST', 'localhost')}:{port}", "TRITON_REDIS_HOST")


def _try_server(server: _Server) -> Finding:
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
        why = f"no PING was answered within {_TIMEOUT:g} s. Each lookup waits for it"
        return finding.error("redis-hangs", f"Redis at {server} does not answer", why, _find_remedy(server))
    except refused as error:
        why = f"{str(error).rstrip('.')}. Lookups there fail"
        return finding.error("redis-refuses", f"the server at {server} refuses a PING", why, _find_remedy(server))
    except (exceptions.RedisError, OSError, ValueError) as error:
        why = f"{str(error).rstrip('.')}. Lookups there fail"
        return finding.error("redis-unreachable", f"Redis at {server} cannot be reached", why, _find_remedy(server))
    if took > _SLOW:
        why = f"a PING took {1000 * took:.0f} ms. A compile waits as long for each graph and kernel"
        return finding.warning("redis-slow", f"Redis at {server} is slow", why, _find_remedy(server))
    return finding.ok("redis", f"Redis at {server} answers", f"a PING took {1000 * took:.0f} ms")


def _find_remedy(server: _Server) -> str:
    return f"unset {' '.join(_SWITCHES)}  # or correct {server.variable}"
