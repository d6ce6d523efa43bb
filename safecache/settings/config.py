"""Settings of this process; the only reader, and writer, of its environment."""

from __future__ import annotations

import os
import sys
import time

from safecache.errors import ConfigError
from safecache.settings.settings import ISOLATE, OBSERVE, REMOTES, SETTINGS, VALUES, hide_password, is_pack, parse_names

__all__ = [
    "EXIT_CONFIG",
    "VARIABLES",
    "Config",
    "cache_directory",
    "copy_environment",
    "current",
    "end_redirection",
    "enforce",
    "find_problems",
    "find_rank",
    "get_environment",
    "get_redirection",
    "install_line",
    "is_compile_worker",
    "is_installed",
    "is_switched_off",
    "is_url",
    "isolate",
    "job_id",
    "library_directory",
    "load",
    "metrics_directory",
    "multiprocess_directory",
    "name_cache",
    "name_run",
    "redirect_cache",
    "reload",
    "run_id",
    "set_child_environment",
    "set_library_directory",
    "set_metrics_directory",
    "split_cache_path",
]

# Not imported from typing, which would take half the time of `import safecache`.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any

    from safecache.settings.settings import Setting, Value


# Those of now, and those that count for one more release.
VARIABLES = (*(setting.variable for setting in SETTINGS), *(value.older for value in VALUES.values() if value.older))
EXIT_CONFIG = 78  # EX_CONFIG of sysexits.h: exit status of a process whose settings cannot be met

_CACHE_DIRECTORY = "TORCHINDUCTOR_CACHE_DIR"
_TRITON_DIRECTORY = "TRITON_CACHE_DIR"
_REDIRECTED = "_SAFECACHE_REDIRECTED"
_RUN = "_SAFECACHE_RUN"
_METRICS_DIRECTORY = "_SAFECACHE_METRICS_DIRECTORY"
# What prometheus_client looks for, in this order.
_MULTIPROCESS_DIRECTORIES = ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir")
# How torchrun, Open MPI and MPICH pass the rank. Not Slurm's variable: in a batch script it is the script's own.
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")


class Config:
    """Values of the settings, read once. The attributes are named as in VALUES."""

    enabled: bool | str
    strict: bool
    disable: tuple[str, ...]
    trust: str
    key_file: str | None
    keyring: str | None
    namespace: str
    shared: bool
    fsync: str
    lower: tuple[str, ...]
    local: str | None
    remote: str | None
    remote_password_file: str | None
    remote_read_only: bool
    remote_connect: float
    remote_timeout: float
    remote_flush: float
    remote_max_bytes: int
    remote_ttl: int | None
    max_bytes: int | None
    max_files: int | None
    max_age: int | None
    must_hit: bool
    lock_timeout: float
    single_flight: bool
    single_flight_wait: float
    trials: bool
    exec_dir: str | None
    isolate: bool | str
    prefetch: bool
    compile_timeout: float | None
    compile_memory: int | None
    assume_unchanged: tuple[str, ...]
    recompile_sample: float
    explain: bool
    metrics: bool
    config_home: str | None

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)

    @property
    def is_observing(self) -> bool:
        """Tell whether files that do not verify are reported and used, as in stock torch."""
        return self.enabled == OBSERVE

    @property
    def packs(self) -> tuple[str, ...]:
        """Paths of ``lower`` that are packs, made by ``safecache pack``; recognised by their ending."""
        return tuple(path for path in self.lower if is_pack(path))

    @property
    def layers(self) -> tuple[str, ...]:
        """Paths of ``lower`` that are cache directories."""
        return tuple(path for path in self.lower if not is_pack(path))


def is_url(place: str) -> bool:
    """Tell whether ``place`` is the URL of a remote, rather than a file or directory."""
    return place.partition("://")[0].lower() in REMOTES and "://" in place


# With SAFECACHE=observe nothing is refused for its owner, for what processes have died of, or for what a compile shows.
_OBSERVING = {"strict": False, "shared": True, "trials": False, "recompile_sample": 0.0}


def load(environ: Mapping[str, str]) -> Config:
    """Read the settings from ``environ``. An empty variable counts as unset.

    Raises ConfigError naming the variable, its value and what is allowed.
    """
    values = {value.name: value.default for value in VALUES.values()}
    for value in VALUES.values():
        if environ.get(value.older):
            values[value.name] = _parse_variable(value.older, environ, value)
    for setting in SETTINGS:
        if environ.get(setting.variable):
            values |= _parse_variable(setting.variable, environ, setting)
    if values["enabled"] == OBSERVE:
        values |= _OBSERVING
    return Config(**values, config_home=_find_config_home(environ))


def _parse_variable(variable: str, environ: Mapping[str, str], form: Value | Setting) -> Any:
    text = environ[variable]
    try:
        return form.parse(text)
    except ValueError:
        shown = ",".join(map(hide_password, parse_names(text))) if "://" in text else text
        raise ConfigError(f"{variable}={shown!r} is not allowed: use {form.allowed}") from None


def find_problems(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the error message for each variable of ``environ`` that load() would refuse. Raises nothing."""
    found = {}
    for variable in VARIABLES:
        try:
            load({variable: environ.get(variable, "")})
        except ConfigError as error:
            found[variable] = str(error)
    return found


def _find_config_home(environ: Mapping[str, str]) -> str | None:
    """Return ``$XDG_CONFIG_HOME``, else ``~/.config``; None without a home (XDG base directory specification)."""
    xdg = environ.get("XDG_CONFIG_HOME", "")
    if xdg and os.path.isabs(xdg):
        return xdg
    home = environ.get("HOME", "")
    if not home:
        import pwd

        try:
            home = pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:
            return None  # a uid without a passwd entry, as OpenShift and `docker --user` give
    return os.path.join(home, ".config") if os.path.isabs(home) else None


_current: Config | None = None


def current() -> Config:
    """Return the settings of this process, which are read once; see reload(). The first call may raise ConfigError."""
    return reload() if _current is None else _current


def reload(without: Collection[str] = ()) -> Config:
    """Read the environment again, as activate() does, with the variables ``without`` unset. Raises ConfigError."""
    global _current
    _current = load({name: os.environ[name] for name in os.environ if name not in without} if without else os.environ)
    return _current


def enforce() -> None:
    """Refuse what does not verify, also with SAFECACHE=observe: for commands that tell what would be refused.

    Reads the settings again without SAFECACHE.
    """
    if current().is_observing:
        reload(without={"SAFECACHE"})


def is_switched_off() -> bool:
    """Tell whether SAFECACHE is off in the environment as it is now, ignoring all else. Raises ConfigError."""
    return not load({"SAFECACHE": os.environ.get("SAFECACHE", "")}).enabled


def get_environment() -> Mapping[str, str]:
    """Return this process's environment, to be read only. Not a copy, which is slow with hundreds of variables."""
    return os.environ


def copy_environment() -> dict[str, str]:
    """Return a copy of this process's environment, to start a child with."""
    return dict(os.environ)


def name_run() -> None:
    """Name the run after its start time, for this process and its children, unless it has a name already."""
    if not run_id():
        moment = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        os.environ[_RUN] = f"{moment}-{os.urandom(4).hex()}"


def set_child_environment(variables: Mapping[str, str | None], *, run: str = "") -> dict[str, str | None]:
    """Set ``variables`` in this process's environment, for the children that it starts next; None unsets one.

    ``run``: name of the children's run. Returns the former values: pass them in again to restore them.
    """
    variables = {**variables, _RUN: run} if run else variables
    before = {name: os.environ.get(name) for name in variables}
    for name, text in variables.items():
        if text is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = text
    return before


def run_id() -> str:
    """Return the name of the run; "" before the first activation."""
    return os.environ.get(_RUN, "")


def isolate() -> None:
    """Turn SAFECACHE_ISOLATE on for this process and its children, unless it is on already. Raises ConfigError."""
    if not current().isolate:
        parts = [word for word in parse_names(os.environ.get(ISOLATE, "")) if "=" in word]
        os.environ[ISOLATE] = ",".join(["1", *parts])
        reload()


def cache_directory() -> str | None:
    """Return TORCHINDUCTOR_CACHE_DIR, where torch keeps what Inductor compiles; None if not set or chosen yet."""
    return os.environ.get(_CACHE_DIRECTORY)


def split_cache_path(path: str) -> tuple[str, str]:
    """Return the cache directory that contains or is ``path``, and the relative path; ``path`` and "" if there is none.

    Known are Inductor's, the original of a redirected one, Triton's, and those of name_cache(), but no lower tiers.
    """
    originals = (get_redirection() or ())[1:]
    for top in (cache_directory(), *originals, os.environ.get(_TRITON_DIRECTORY), *_named):
        top = top and top.rstrip(os.sep)
        if top and f"{path}/".startswith(f"{top}/"):
            return top, path[len(top) :].strip(os.sep)
    return path, ""


_named: dict[str, None] = {}


def name_cache(directory: str) -> None:
    """Make within_cache() know this directory too, because a command or a sweep works on it."""
    _named.setdefault(directory)


def redirect_cache(directory: str, original: str | None) -> None:
    """Make torch, in this process and its children, use ``directory`` in place of ``original`` for now.

    With None, ``directory`` is the original again.
    """
    os.environ[_CACHE_DIRECTORY] = directory
    if original is None:
        os.environ.pop(_REDIRECTED, None)
    else:
        os.environ[_REDIRECTED] = f"{directory}\n{original}"


def get_redirection() -> tuple[str, str] | None:
    """Return (directory, original) of the current redirection, set here or by a parent; None without one."""
    directory, separator, original = os.environ.get(_REDIRECTED, "").partition("\n")
    return (directory, original) if separator else None


def end_redirection() -> None:
    """Make torch use the original cache directory again, if it is redirected now."""
    found = get_redirection()
    if found is not None and found[0] == cache_directory():
        redirect_cache(found[1], None)


def library_directory(variable: str) -> tuple[str, str | None]:
    """Return the cache directory that ``variable`` names, or "". If safecache has set it, also for what directory."""
    directory = os.environ.get(variable, "")
    set_by_us, _, original = os.environ.get(f"_SAFECACHE_{variable}", "").partition(os.pathsep)
    return directory, original if directory and directory == set_by_us else None


def set_library_directory(variable: str, directory: str, original: str = "") -> None:
    """Set ``variable``, by which a library finds its cache of kernels, in this process and its children."""
    os.environ[variable] = directory
    os.environ[f"_SAFECACHE_{variable}"] = directory + os.pathsep + original


def job_id() -> str:
    """Return the name of the job: equal in all its ranks on one day (UTC). For a process that is no rank, the run's."""
    if not find_rank():
        return run_id()
    meeting = (os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT"))
    return ":".join((*meeting, time.strftime("%Y%m%d", time.gmtime())))


def find_rank() -> str:
    """Return the rank of this process as its launcher (torchrun, Open MPI, MPICH) has set it; "" without one."""
    return next((os.environ[name] for name in _RANKS if os.environ.get(name)), "")


def multiprocess_directory() -> str:
    """Return the directory of prometheus_client's multiprocess mode; "" if it is not set."""
    return next((os.environ[name] for name in _MULTIPROCESS_DIRECTORIES if os.environ.get(name)), "")


def metrics_directory() -> str:
    """Return the directory for safecache's counters of this run; "" before one is made."""
    return os.environ.get(_METRICS_DIRECTORY, "")


def set_metrics_directory(directory: str) -> None:
    """Make this process and its children keep safecache's counters in ``directory``."""
    os.environ[_METRICS_DIRECTORY] = directory


_MAIN = os.path.join("compile_worker", "__main__.py")


def is_compile_worker() -> bool:
    """Tell whether this process is one of Inductor's compile workers.

    By its program, torch/_inductor/compile_worker/__main__.py. False in the process that creates the pool.
    """
    return str(getattr(sys.modules.get("__main__"), "__file__", "")).endswith(_MAIN)


def is_installed(name: str) -> bool:
    """Tell whether a module of this name could be imported, without importing it."""
    if name in sys.modules:
        return sys.modules[name] is not None
    from importlib.machinery import PathFinder

    if PathFinder.find_spec(name) is not None:
        return True
    from importlib.util import find_spec  # takes a millisecond to import, and asks other finders too

    return find_spec(name) is not None


def install_line(extra: str) -> str:
    """Return the command that installs safecache with this ``extra``, such as "metrics"."""
    return f"pip install 'safecache[{extra}]'"
