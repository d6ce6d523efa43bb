"""Say why a shared object does not load. The dynamic loader is asked, which runs none of its code."""

from __future__ import annotations

import errno
import importlib.util
import mmap
import os
import re
import resource
import shlex
import stat
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from safecache.doctor import directories, finding
from safecache.doctor.finding import Finding
from safecache.fs import mounts, opening
from safecache.reporting.kinds import Kind
from safecache.settings import config
from safecache.store import entry_files

__all__ = ["MACHINES", "check"]

# Platforms with wheels of torch, and related ones, by e_machine, which is at this offset of an ELF file (elf(5)).
_MACHINE = slice(18, 20)
MACHINES = {3: "i386", 21: "ppc64le", 22: "s390x", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv64"}

_LOADER_TIMEOUT = 60  # seconds
_SHOWN_SYMBOLS = 5
_LOST = "It cannot be loaded"

# How the loader names the file in question, in whose directory it is started, and how it words what it finds.
_ITSELF = ("./", "/proc/self/fd/")
_FATAL = "error while loading shared libraries"
_REFUSAL = re.compile(rf"object '(?:\./|/proc/self/fd/).*cannot be preloaded \((.*)\)|{_FATAL}: (.+)")
_MISSING = re.compile(r"^\s*(.+) => not found$", re.MULTILINE)
_MISSING_VERSION = re.compile(r"^[^:]*: (.+): version [`']([^']+)' not found \(required by (.+)\)$", re.MULTILINE)
_UNDEFINED = re.compile(r"^undefined symbol: (\S+).*\((?:\./|/proc/self/fd/).*\)$", re.MULTILINE)


def check(path: str) -> list[Finding]:
    """Find what prevents this user from loading the shared object at ``path``; if nothing does, the finding ``loads``.

    The first cause that prevents further checks is the last finding.
    """
    path = os.path.abspath(path)
    try:
        content = opening.read_regular(path, _check_regular)
    except MemoryError:
        return [_explain_no_memory(path)]
    except OSError as error:
        return [_explain_unreadable(path, error)]
    if mounts.is_noexec(path):
        why = f"it is on {mounts.find_mount(path)}, a noexec mount. Each load of compiled code fails"
        remedy = directories.suggest_directory(_find_variable(path))
        return [finding.error("noexec", f"no code can be loaded from {path}", why, remedy)]
    refused = _check_machine(content) or _check_mapping(path)
    if refused is not None:
        return [refused]
    why = "the dynamic loader finds its libraries and symbols. If it failed elsewhere, run this there, as that user"
    return list(_check_linking(path)) or [finding.ok("loads", f"{path} loads", why)]


def _find_variable(path: str) -> str:
    """The variable that moves this cache, recognised by the names of the caches' directories."""
    if "torch_extensions" in path:
        return "TORCH_EXTENSIONS_DIR"
    if "aotinductor_" in path:
        return "TMPDIR"
    triton = config.copy_environment().get("TRITON_CACHE_DIR", "")
    is_triton = "triton" in path.split(os.sep) or (triton and path.startswith(os.path.join(triton, "")))
    return "TRITON_CACHE_DIR" if is_triton else "TORCHINDUCTOR_CACHE_DIR"


# Reading it --------------------------------------------------------------------------------------------------------


def _check_regular(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")
    if status.st_size > entry_files.max_entry_size(Kind.NATIVE_CODE):
        raise OSError(errno.EFBIG, "it is larger than any library that safecache reads")


def _explain_unreadable(path: str, error: OSError) -> Finding:
    if error.errno == errno.ENOENT:
        why = "an entry may outlive its library. It is rebuilt at the next start"
        return finding.error("not-found", f"{path} does not exist", why, f"ls -l {shlex.quote(path)}")
    if error.errno == errno.EPERM:
        return _explain_denied(path, error)
    if error.errno == errno.EACCES:
        remedy = f"{directories.suggest_directory(_find_variable(path))}  # or make the file readable for this user"
        return finding.error("permission", f"{path} may not be read", f"{_find_closed(path)}. {_LOST}", remedy)
    if error.errno == errno.ENOMEM:
        return _explain_no_memory(path)
    remedy = f"ls -l {shlex.quote(path)}  # if it is in a cache, remove it: it is recompiled"
    return finding.error("unreadable", f"{path} cannot be read", f"{error.strerror}. {_LOST}", remedy)


def _find_closed(path: str) -> str:
    """The first name on the way to ``path`` that this user may not access, with its owner and mode."""
    path = os.path.realpath(path)  # a link says nothing about its target
    names = path.split(os.sep)
    for depth in range(1, len(names) + 1):
        step = os.sep.join(names[:depth]) or os.sep
        if not os.access(step, os.R_OK if step == path else os.X_OK, effective_ids=True):
            status = os.stat(step)
            mode = stat.filemode(status.st_mode)
            return f"{step} is {mode}, of uid {status.st_uid} and gid {status.st_gid}; this is uid {os.geteuid()}"
    return f"{path}: permission denied, though owners and modes allow it: {_describe_policy()}"


# Its machine -------------------------------------------------------------------------------------------------------


def _check_machine(content: bytes) -> Finding | None:
    """The loader says no more of such a file than that it cannot be opened."""
    with open("/proc/self/exe", "rb") as file:
        here = file.read(_MACHINE.stop)
    if len(content) < len(here) or content[:4] != here[:4] or content[_MACHINE] == here[_MACHINE]:
        return None
    numbers = (int.from_bytes(each[_MACHINE], sys.byteorder) for each in (content, here))
    built, runs = (MACHINES.get(number, f"e_machine {number}") for number in numbers)
    why = f"it is built for {built}, this machine is {runs}. {_LOST}"
    remedy = f"{directories.suggest_directory('TORCHINDUCTOR_CACHE_DIR')}  # one cache for each architecture"
    return finding.error("wrong-architecture", "the file is for another machine", why, remedy)


# Mapping it --------------------------------------------------------------------------------------------------------


def _check_mapping(path: str) -> Finding | None:
    """Try to map it as the loader does, which runs nothing."""
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size:
                mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC).close()
    except OSError as error:
        if error.errno == errno.ENOMEM:
            return _explain_no_memory(path)
        return _explain_denied(path, error)
    return None


def _explain_no_memory(path: str) -> Finding:
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    allowed = "unlimited" if limit == resource.RLIM_INFINITY else f"{limit >> 20} MiB"
    why = f"out of memory; this process may use {allowed}. {_LOST}"
    remedy = "ulimit -v unlimited  # or raise the memory of the container"
    return finding.error("out-of-memory", f"{path} cannot be mapped", why, remedy)


def _explain_denied(path: str, error: OSError) -> Finding:
    why = f"{error.strerror}, and its mount is not noexec; {_describe_policy(path)}. {_LOST}"
    remedy = "export SAFECACHE_EXEC_DIR=DIR  # where this machine's policy allows code; ask its administrator"
    return finding.error("denied-by-policy", f"{path} may not be mapped as code", why, remedy)


def _describe_policy(path: str = "") -> str:
    """The visible state of this machine's security modules, as text for a person."""
    seen = []
    try:
        with open("/sys/fs/selinux/enforce", encoding="utf-8") as file:
            seen.append("SELinux is enforcing" if file.read().strip() == "1" else "SELinux is permissive")
        seen.append(f"its label is {os.getxattr(path, 'security.selinux').rstrip(bytes(1)).decode()}")
    except OSError:
        pass  # no SELinux, or no label
    if os.path.exists("/run/fapolicyd"):
        seen.append("fapolicyd is running: fapolicyd-cli --check-path shows what it trusts")
    return "; ".join(seen) if seen else "neither SELinux nor fapolicyd can be seen from here"


# Linking it --------------------------------------------------------------------------------------------------------


def _check_linking(path: str) -> Iterator[Finding]:
    listing = _list_libraries(path)
    refusal = _REFUSAL.search(listing)
    if refusal is not None:
        remedy = f"rm {shlex.quote(path)}  # or the file that the loader names; a cache recompiles it"
        what, why = "the dynamic loader refuses the file", f"{refusal[1] or refusal[2]}. {_LOST}"
        yield finding.error("refused-by-loader", what, why, remedy)
        return
    missing = _MISSING.findall(listing)
    if missing:
        why = f"the loader does not find {', '.join(missing)}. {_LOST}"
        remedy = "export LD_LIBRARY_PATH=DIR:$LD_LIBRARY_PATH  # DIR: where they are; or install them"
        yield finding.error("missing-library", "libraries that the file needs are missing", why, remedy)
    versions = sorted(set(_MISSING_VERSION.findall(listing)))
    for library, version, by in versions:
        needs = "it needs" if by.startswith(_ITSELF) else f"{by}, which it needs, needs"
        why = f"{needs} {version} of {library}, and the one here has no such version. {_LOST}"
        remedy = (
            f"{directories.suggest_directory(_find_variable(path))}  # a cache of this system; or fill it on the oldest"
        )
        yield finding.error("missing-version", "a library is older than the file needs", why, remedy)
    undefined = sorted(set(_UNDEFINED.findall(listing)))
    if undefined and not missing and not versions:  # from which it may follow
        shown = ", ".join(undefined[:_SHOWN_SYMBOLS]) + (", …" if len(undefined) > _SHOWN_SYMBOLS else "")
        why = f"{shown}, {len(undefined)} in all; it was built against another torch or Python. {_LOST}"
        remedy = f"rm {shlex.quote(path)}  # if it is in a cache, which recompiles it"
        yield finding.error("undefined-symbol", "symbols that the file needs are undefined", why, remedy)


def _list_libraries(path: str) -> str:
    """Ask the dynamic loader what it would load, and which symbols are missing, as ``ldd -r`` does (ld.so(8)).

    It maps the libraries of a program, and runs none of them, resolvers of symbols included. The program is Python,
    with ``path`` preloaded, for two reasons: libraries are searched for as they are for Python, and if ``path`` were
    the program, the loader would run the auditing library that it may name.
    """
    folder, name = os.path.split(path)
    with open(path, "rb") as file:
        # These characters have a meaning in LD_PRELOAD. By its own name, libraries beside it are found as well.
        preloaded = f"/proc/self/fd/{file.fileno()}" if re.search("[ :]", name) else f"./{name}"
        environment = {key: value for key, value in config.copy_environment().items() if not key.startswith("LD_")}
        others = config.copy_environment().get("LD_PRELOAD", "")
        environment |= {"LD_TRACE_LOADED_OBJECTS": "1", "LD_WARN": "1", "LD_BIND_NOW": "1"}
        environment["LD_PRELOAD"] = f"{preloaded} {others}".rstrip()
        command = [_find_loader(), "--library-path", _make_library_path(), os.readlink("/proc/self/exe")]
        options: dict[str, Any] = {"cwd": folder, "env": environment, "pass_fds": [file.fileno()]}
        options |= {"encoding": "utf-8", "errors": "surrogateescape", "timeout": _LOADER_TIMEOUT}
        try:
            done: subprocess.CompletedProcess[str] = subprocess.run(command, capture_output=True, **options)
        except subprocess.TimeoutExpired:
            return f"{_FATAL}: it does not come to an end in {_LOADER_TIMEOUT} seconds"
    if done.returncode < 0:
        return f"{_FATAL}: signal {-done.returncode} ends it"
    return done.stdout + done.stderr


def _make_library_path() -> str:
    torch = importlib.util.find_spec("torch")
    known = config.copy_environment().get("LD_LIBRARY_PATH", "").split(":")
    # Inductor's kernels rely on torch's libraries being there already.
    known += [os.path.join(folder, "lib") for folder in (torch and torch.submodule_search_locations) or ()]
    return ":".join(os.path.abspath(folder) for folder in known if folder)


def _find_loader() -> str:
    """The dynamic loader of this process, among the files that it has mapped."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
        paths = [line.split(maxsplit=5)[5].rstrip("\n") for line in file if line.count(" /")]
    return next(path for path in paths if re.match(r"ld(64)?[-.]", os.path.basename(path)) and os.path.isfile(path))
