"""Checks of what is installed: versions, hooks, the programs that a compile starts, the GPU driver and CPUs."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import shutil
import struct
import subprocess
import sys
import sysconfig
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.machinery import PathFinder
from importlib.util import cache_from_source
from typing import Any

from safecache import load_errors
from safecache._version import __version__
from safecache.doctor import directories, finding
from safecache.doctor.finding import Finding
from safecache.isolation import client
from safecache.patching import hook, units
from safecache.patching.hook import HookState
from safecache.settings import children, config
from safecache.settings.units import write_count
from safecache.signing import provenance

__all__ = [
    "TIMEOUT",
    "check_bytecode",
    "check_compilers",
    "check_cpus",
    "check_hooks",
    "check_nvidia",
    "check_versions",
    "find_objection",
]

_KNOWN = {"torch": (hook.TORCH_FROM, hook.TORCH_UNTIL), "triton": (hook.TRITON_FROM, hook.TRITON_UNTIL)}


def check_versions(_: Mapping[str, str]) -> Iterator[Finding]:
    """Findings about a missing torch, and versions of torch or Triton that safecache was not tested on."""
    installed = provenance.describe()
    if not installed["torch"]:
        why = f"{sys.executable} does not find it. There is nothing to compile or to cache"
        yield finding.error("no-torch", "torch is not installed", why, "pip install torch  # in this environment")
    for name, (first, end) in _KNOWN.items():
        digits = re.match(r"(\d+)\.(\d+)", installed[name])
        release = (int(digits[1]), int(digits[2])) if digits else (0, 0)
        if installed[name] and not first <= release < end:
            known = f"{first[0]}.{first[1]} to {end[0]}.{end[1] - 1}"
            why = f"safecache {__version__} knows {known}. Hooks whose functions have changed are inactive"
            remedy = f"pip install -U safecache  # or a {name} of {known}"
            yield finding.warning(f"unknown-{name}", f"{name} {installed[name]} is unknown", why, remedy)
    said = ", ".join(f"{name} {installed[name] or 'none'}" for name in ("torch", "triton", "python"))
    yield finding.ok("versions", "versions are listed", f"safecache {__version__}, {said}, {installed['machine']}")


TIMEOUT = 180  # seconds; importing torch without bytecode, over a network, takes long
_SHOWN = 3


def check_hooks(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Findings about hooks that stand down, and a torch that cannot be imported."""
    if not provenance.torch_version():
        return  # the check of versions says so
    try:
        # That process generates a key and creates caches: not in the user's directories.
        place = tempfile.mkdtemp(prefix="safecache-doctor-")
    except OSError as error:
        why = f"no temporary directory can be made: {error.strerror}. torch was not imported"
        yield finding.info("hooks-not-examined", "hooks were not examined", why)
        return
    try:
        said = _run_status(dict(environ), place)
    except subprocess.TimeoutExpired:
        why = f"the import took more than {TIMEOUT} s. Each process waits as long"
        remedy = "python -X importtime -c 'import torch'  # the module that takes long"
        yield finding.error("torch-not-imported", "torch is not imported in time", why, remedy)
        return
    finally:
        shutil.rmtree(place, ignore_errors=True)
    try:
        hooks = json.loads(said.stdout.splitlines()[-1])["hooks"]
    except (IndexError, ValueError, KeyError):
        last = (said.stderr.strip().splitlines() or [f"it ends with {said.returncode}"])[-1]
        why, remedy = f"{last}. No process can compile", "python -X faulthandler -m safecache status  # its stack"
        yield finding.error("torch-not-imported", "the import of torch ends its process", why, remedy)
        return
    yield from _check_inactive(hooks)


def _run_status(environment: dict[str, str], place: str) -> subprocess.CompletedProcess[str]:
    own = ("XDG_CONFIG_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    ours = {name for name in environment if name.startswith("SAFECACHE_")} - {"SAFECACHE_DISABLE"}
    environment = {name: environment[name] for name in environment.keys() - ours}
    environment |= {name: os.path.join(place, name) for name in own}
    environment |= {"SAFECACHE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "safecache", "status", "--json"]
    options = children.make_options(children.add_package(environment))
    return subprocess.run(command, **options, capture_output=True, text=True, errors="replace", timeout=TIMEOUT)


def _check_inactive(hooks: list[dict[str, str]]) -> Iterator[Finding]:
    by_reason = defaultdict(list)
    for each in hooks:
        if not HookState(each["state"]).is_healthy:
            by_reason[each["reason"] or each["state"]].append(each["name"])
    for reason, names in by_reason.items():
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        shown = f"{', '.join(names[:_SHOWN])}{more}"
        what = f"{write_count(len(names), 'hook is', 'hooks are')} inactive ({shown})"
        why = f"{reason}. Loads through them are as in stock torch, unverified"
        yield finding.warning("hook-standing-down", what, why, "pip install -U safecache  # then: safecache status")
    off = {each["unit"]: each["reason"] for each in hooks if each["state"] == HookState.SWITCHED_OFF}
    for unit, lost in off.items():
        why = f"SAFECACHE_DISABLE names it. {lost.removesuffix('.')}"
        yield finding.warning("unit-switched-off", f"the unit {unit} is switched off", why, "unset SAFECACHE_DISABLE")
    active = sum(HookState(each["state"]).is_on for each in hooks)
    if not by_reason:
        yield finding.ok("hooks", "hooks are active", f"all {active} that this torch needs")


_PROGRAM_TIMEOUT = 30  # seconds


def find_objection(
    command: list[str], *, source: str = "", environ: Mapping[str, str] | None = None, line: int = -1
) -> str | None:
    """Why a program fails, with ``source`` as its input; None if it exits with 0. Takes 30 seconds at most.

    ``line``: the index of the line of its stderr to return.
    """
    options: dict[str, Any] = {"env": environ and dict(environ)}
    if command[0] == sys.executable:
        options = children.make_options(config.copy_environment() if environ is None else environ)
    try:
        done = subprocess.run(command, **options, input=source.encode(), capture_output=True, timeout=_PROGRAM_TIMEOUT)
    except subprocess.TimeoutExpired:
        return f"it takes more than {_PROGRAM_TIMEOUT} s"
    except OSError as error:
        return error.strerror or str(error)
    if done.returncode == 0:
        return None
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return lines[line] if lines else f"it ends with {done.returncode}"


# Defaults of ``_find_compiler`` in triton/runtime/build.py and ``cpp.cxx`` in torch/_inductor/config.py.
_LANGUAGES = {
    "C": ("CC", ("gcc", "clang"), "c", "#include <stdio.h>\n", "Triton cannot compile its launchers"),
    "C++": ("CXX", ("g++",), "c++", "#include <new>\n", "Inductor cannot compile for the CPU"),
}


def check_compilers(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Findings about a C or C++ compiler that is missing, does not work, or does not find Python's headers."""
    working = []
    for language, (variable, names, flag, source, effect) in _LANGUAGES.items():
        command = _find_command(environ, variable, names)
        remedy = f"{_suggest_install(language)}  # or export {variable}=PATH of one"
        if not command or shutil.which(command[0], path=environ.get("PATH")) is None:
            named = f"{variable}={environ[variable]}" if environ.get(variable) else " or ".join(names)
            why = f"{named} is not found. {effect}"
            yield finding.error("no-compiler", f"there is no {language} compiler", why, remedy)
            continue
        said = _try_compile([*command, "-x", flag], source, environ)
        if said is None:
            working.append((command, flag))
        else:
            what = f"the {language} compiler {shlex.join(command)} does not work"
            yield finding.error("broken-compiler", what, f"{said}. {effect}", remedy)
    for command, flag in working[:1]:
        yield from _check_headers(command, flag, environ)
    for command, flag in working:
        if flag == "c++":
            yield from _check_runtime(command, environ)
    if working:
        yield finding.ok("compilers", "compilers work", " and ".join(shlex.join(command) for command, _ in working))


def _find_command(environ: Mapping[str, str], variable: str, names: tuple[str, ...]) -> list[str] | None:
    named = environ.get(variable)
    if named:
        # Triton reads it as the name of a program, torch 2.15 as a command.
        return [named] if variable == "CC" else shlex.split(named)
    return next(([name] for name in names if shutil.which(name, path=environ.get("PATH"))), None)


def _check_headers(command: list[str], flag: str, environ: Mapping[str, str]) -> Iterator[Finding]:
    include = sysconfig.get_paths()["include"]
    if _try_compile([*command, "-x", flag, f"-I{include}"], "#include <Python.h>\n", environ) is not None:
        why = f"{shlex.join(command)} finds none in {include}. Neither Triton nor Inductor can compile"
        remedy = f"{_suggest_install('headers')}  # an environment of conda, uv or pyenv has them"
        yield finding.error("no-python-headers", "Python.h is missing", why, remedy)


def _check_runtime(command: list[str], environ: Mapping[str, str]) -> Iterator[Finding]:
    """A library with its own copy of the C++ runtime finds this process's locales by its own indices, and crashes."""
    library = b""
    # No temporary directory, or no library: reported elsewhere.
    with suppress(OSError), tempfile.TemporaryDirectory(prefix="safecache-doctor-") as directory:
        path = os.path.join(directory, "library.so")
        link = [*command, "-shared", "-fPIC", "-x", "c++", "-", "-o", path]
        find_objection(link, source="#include <locale>\nstd::locale locale;\n", environ=environ)
        with open(path, "rb") as file:
            library = file.read()
    if not library or b"libstdc++.so" in library or b"libc++.so" in library:
        return
    what = f"{shlex.join(command)} links the C++ runtime statically"
    why = "it has no libstdc++.so. AOTInductor packages of it crash the process that loads them"
    remedy = "export CXX=/usr/bin/g++  # or another that has a libstdc++.so; then rebuild the packages"
    yield finding.warning("static-libstdcxx", what, why, remedy)


def _suggest_install(what: str) -> str:
    return load_errors.make_remedy(what).removeprefix("Install it: ")


def _try_compile(command: list[str], source: str, environ: Mapping[str, str]) -> str | None:
    """The compiler's first message against ``source``, None if there is none; nothing is written."""
    return find_objection([*command, "-fsyntax-only", "-"], source=source, environ=environ, line=0)


_THREADS = "TORCHINDUCTOR_COMPILE_THREADS"
_MOST = 32  # as in ``decide_compile_threads`` in torch/_inductor/config.py


def check_cpus(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Findings about more compile threads than a CPU quota allows: torch only counts the CPUs of its affinity."""
    usable = len(os.sched_getaffinity(0))
    named = environ.get(_THREADS)
    try:
        threads = int(named) if named is not None else min(_MOST, usable)
    except ValueError:
        what, why = f"{_THREADS}={named} is no number", "torch reads it when it is imported. The import fails"
        yield finding.error("bad-compile-threads", what, why, f"export {_THREADS}={usable}")
        return
    quota = client.read_quota()
    allowed = usable if quota is None else min(usable, max(1, math.ceil(quota)))
    why = f"{_THREADS}={named}" if named is not None else f"torch chooses {write_count(threads, 'compile thread')}"
    why += f"; {write_count(usable, 'CPU')} can be used"
    why += "" if quota is None else f", with time for {quota:g} of them by the quota of the cgroup"
    if threads > allowed:
        what, why = "more compile threads than CPUs start", f"{why}. All are throttled, and each takes memory"
        yield finding.warning("too-many-compile-threads", what, why, f"export {_THREADS}={allowed}")
    else:
        yield finding.ok("cpus", "compile threads fit the CPUs", why)


_DEVICE = "/dev/nvidiactl"
_LDCONFIG = "/sbin/ldconfig"
_LIBRARY = "libcuda.so.1"
_TIMEOUT = 30  # seconds
_INSTALL = "ldconfig  # as root; in a container also NVIDIA_DRIVER_CAPABILITIES=compute,utility"
_LOAD = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"
_TOOLS = {"ptxas": "TRITON_PTXAS_PATH", "ptxas-blackwell": "TRITON_PTXAS_BLACKWELL_PATH"}


def check_nvidia(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Findings about a driver library that is missing or does not load, and a ptxas that does not run."""
    spec = PathFinder.find_spec("triton")  # which does not import it
    if spec is None or not spec.submodule_search_locations:
        why = f"{sys.executable} does not find it. Nothing is compiled for GPUs"
        yield finding.info("no-triton", "Triton is not installed", why)
        return
    named = environ.get("TRITON_LIBCUDA_PATH") or None
    if os.path.exists(_DEVICE) or named:
        yield from _check_driver(environ, named)
    else:
        why = f"{_DEVICE} does not exist. GPU checks are skipped"
        yield finding.info("no-nvidia-device", "there is no NVIDIA GPU", why)
    for tool, variable in _TOOLS.items():
        bundled = os.path.join(spec.submodule_search_locations[0], "backends", "nvidia", "bin", tool)
        yield from _check_tool(bundled, variable, environ.get(variable))


def _check_driver(environ: Mapping[str, str], named: str | None) -> Iterator[Finding]:
    if named is None and not os.access(_LDCONFIG, os.X_OK):
        why = f"Triton asks it where {_LIBRARY} is. No kernel can be launched"
        remedy = f"export TRITON_LIBCUDA_PATH=DIR  # with {_LIBRARY} in it"
        yield finding.error("no-ldconfig", f"{_LDCONFIG} cannot be run", why, remedy)
        return
    places = [named] if named else []
    if not named:
        listing = subprocess.run([_LDCONFIG, "-p"], capture_output=True, timeout=_TIMEOUT).stdout
        lines = listing.decode(errors="replace").splitlines()
        listed = [os.path.dirname(line.split()[-1]) for line in lines if _LIBRARY in line]
        places = listed or environ.get("LD_LIBRARY_PATH", "").split(":")
    found = [path for path in (os.path.join(place, _LIBRARY) for place in places if place) if os.path.exists(path)]
    if not found:
        where = f"TRITON_LIBCUDA_PATH={named} has none" if named else "ldconfig and LD_LIBRARY_PATH have none"
        remedy = "unset TRITON_LIBCUDA_PATH" if named else _INSTALL
        yield finding.error("no-libcuda", f"{_LIBRARY} is missing", f"{where}. Triton cannot use the GPU", remedy)
        return
    said = find_objection([sys.executable, "-S", "-c", _LOAD, os.path.abspath(found[0])])
    if said is None:
        yield finding.ok("libcuda", f"{_LIBRARY} loads", f"it is {found[0]}")
    else:
        why = f"{said}. Triton cannot use the GPU"
        yield finding.error("broken-libcuda", f"{found[0]} cannot be loaded", why, _INSTALL)


def _check_tool(bundled: str, variable: str, named: str | None) -> Iterator[Finding]:
    refused = find_objection([named, "--version"]) if named else None
    if refused is not None:
        why = f"{refused}. Triton uses its own, or fails"
        yield finding.warning("ptxas-not-used", f"{variable}={named} cannot be run", why, f"unset {variable}")
    said = find_objection([bundled, "--version"]) if named is None or refused is not None else None
    if said is not None:
        why = f"{said}. No kernel can be compiled for NVIDIA GPUs"
        remedy = f"export {variable}=FILE  # on a file system that is not noexec; or reinstall triton"
        yield finding.error("broken-ptxas", f"{bundled} cannot be run", why, remedy)


_HEADER = struct.Struct("<4sIII")  # of PEP 552
_UNCHECKED = 0b01


def check_bytecode(environ: Mapping[str, str]) -> Iterator[Finding]:
    """A finding about modules of torch without bytecode, if none can be written, so that each process compiles them."""
    spec = PathFinder.find_spec("torch")
    if spec is None or spec.origin is None:
        return
    folder = os.path.dirname(spec.origin)
    # Those that every compile imports: the modules that we patch.
    names = sorted(name for name in units.list_modules(()) if name.startswith("torch."))
    modules = [os.path.join(os.path.dirname(folder), *name.split(".")) + ".py" for name in names]
    sources = [spec.origin, *filter(os.path.isfile, modules)]
    missing = [path for path in sources if not _is_kept(path)]
    directory = directories.find_nearest(os.path.dirname(cache_from_source(spec.origin)))
    why = "" if os.access(directory, os.W_OK, effective_ids=True) else f"{directory} cannot be written"
    if environ.get("PYTHONDONTWRITEBYTECODE"):
        why = "PYTHONDONTWRITEBYTECODE is set"
    if missing and why:
        what = f"{len(missing)} of {len(sources)} modules of torch that compiles import have no bytecode"
        why = f"{why}. Each process takes seconds longer to import torch"
        remedy = f"env -u PYTHONDONTWRITEBYTECODE {shlex.join([sys.executable, '-m', 'compileall', '-q', folder])}"
        yield finding.warning("no-bytecode", what, why, remedy)


def _is_kept(source: str) -> bool:
    """Whether an import would use the existing bytecode of ``source``, judged by the bytecode's header."""
    with suppress(OSError, struct.error), open(cache_from_source(source), "rb") as file:
        _, flags, modified, size = _HEADER.unpack(file.read(_HEADER.size))
        status = os.stat(source)
        return bool(flags & _UNCHECKED) or (modified, size) == (int(status.st_mtime) & 0xFFFFFFFF, status.st_size)
    return False
