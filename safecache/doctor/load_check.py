"""Why a shared object does not load: found from outside, without running any of its code.

For that its ELF headers are read: 64-bit ones, as on every platform of torch (elf(5)).
"""

from __future__ import annotations

import errno
import importlib.util
import mmap
import os
import re
import resource
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

from safecache import loads
from safecache.doctor import finding
from safecache.doctor.finding import Finding
from safecache.files import mounts, opening
from safecache.reporting.kinds import Kind
from safecache.settings import config
from safecache.store import entry_files

__all__ = ["MACHINES", "Elf", "NotElfError", "TruncatedElfError", "check"]

_HEADER = struct.Struct("16sHHIQQQIHHHHHH")
_PROGRAM = struct.Struct("IIQQQQQQ")
_SECTION = struct.Struct("IIQQQQIIQQ")
_SYMBOL = struct.Struct("IBBHQQ")

_MAGIC = b"\x7fELF"
_CLASS_64 = 2
_ET_DYN = 3
_SHT_DYNSYM = 11
_STB_GLOBAL = 1
_BYTE_ORDER = {1: "<", 2: ">"}

# Platforms with wheels of torch, and related ones, by e_machine.
MACHINES = {3: "i386", 21: "ppc64le", 22: "s390x", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv64"}


class NotElfError(Exception):
    """The file is not an ELF file, or not one that a process of this platform could load; says why."""


class TruncatedElfError(NotElfError):
    """The file begins like an ELF file, but ends before its headers do."""


class _Section(NamedTuple):
    name: int
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_size: int


class Elf:
    """An ELF file: ``machine`` as in MACHINES, and ``loaded_size``, how many bytes of the file its segments need."""

    def __init__(self, content: bytes) -> None:
        """Read the headers. Raises NotElfError."""
        self._content = content
        if not content.startswith(_MAGIC[: len(content)]):
            raise NotElfError(f"it begins with {content[:8]!r}, not with the four bytes of an ELF file")
        if content[4:5] == b"\x01":
            raise NotElfError("it is an ELF file of 32 bits")
        if len(content) < _HEADER.size:
            raise TruncatedElfError(f"it has {len(content)} bytes, and the header alone {_HEADER.size}")
        order = _BYTE_ORDER.get(content[5]) if content[4] == _CLASS_64 else None
        if order is None:
            raise NotElfError(f"its ELF header is damaged: {content[: _HEADER.size]!r}")
        self._order = order
        header = self._unpack(_HEADER, 0)
        self.type, self.machine = header[1], header[2]
        self._section_table = (header[6], header[11], header[12])
        programs = [self._unpack(_PROGRAM, header[5] + number * header[9]) for number in range(header[10])]
        # PT_LOAD: offset and size in the file
        self.loaded_size = max((program[2] + program[5] for program in programs if program[0] == 1), default=0)
        self.memory_size = sum(program[6] for program in programs if program[0] == 1)

    @property
    def is_library(self) -> bool:
        """Whether it is a loadable library, and not an object file or a core dump."""
        return self.type == _ET_DYN

    def _unpack(self, layout: struct.Struct, offset: int) -> tuple[int, ...]:
        if offset + layout.size > len(self._content):
            raise TruncatedElfError(f"its headers go on beyond the end of the file, at {len(self._content)} bytes")
        fields: tuple[int, ...] = struct.unpack_from(self._order + layout.format, self._content, offset)
        return fields

    def undefined(self) -> list[str]:
        """The symbols that other libraries must define for it to load: global ones, since weak ones may be missing.

        Raises NotElfError, as defined() does, if the list is damaged or cut off; the loader finds it in another way.
        """
        return [name for name, binding, defined in self._symbols() if not defined and binding == _STB_GLOBAL]

    def defined(self) -> set[str]:
        """The symbols that it defines for others. Raises NotElfError."""
        return {name for name, _, defined in self._symbols() if defined}

    def _symbols(self) -> Iterator[tuple[str, int, bool]]:
        offset, size, count = self._section_table
        sections = [_Section(*self._unpack(_SECTION, offset + number * size)) for number in range(count)]
        # There is at most one (elf(5)); reading a file that claims thousands would take that much longer.
        symbols = next((section for section in sections if section.type == _SHT_DYNSYM), None)
        if symbols is None:
            return
        if symbols.link >= count:
            raise NotElfError(f"the names of its symbols are in section {symbols.link} of {count}")
        strings = sections[symbols.link].offset
        table = memoryview(self._content)[symbols.offset : symbols.offset + symbols.size]
        if len(table) != symbols.size or symbols.size % _SYMBOL.size:
            raise NotElfError(f"its list of symbols has {len(table)} bytes of {symbols.size}")
        left = len(self._content)
        for name, info, _, index, _, _ in struct.Struct(self._order + _SYMBOL.format).iter_unpack(table):
            if name:
                text = self._string(strings + name)
                left -= len(text)
                if left < 0:
                    raise NotElfError("the names of its symbols are longer than the whole file")
                yield text.decode("utf-8", "replace"), info >> 4, index != 0

    def _string(self, start: int) -> bytes:
        end = self._content.find(b"\0", start)
        if end < 0:
            raise NotElfError(f"the name of a symbol, at {start}, does not end")
        return self._content[start:end]


_LOADER_TIMEOUT = 60  # seconds
_SHOWN_SYMBOLS = 5

# How the loader names the file in question, in whose directory it is started, and how it words what it finds.
_ITSELF = ("./", "/proc/self/fd/")
_FATAL = "error while loading shared libraries"
_REFUSAL = re.compile(rf"object '(?:\./|/proc/self/fd/).*cannot be preloaded \((.*)\)|{_FATAL}: (.+)")
_MISSING = re.compile(r"^\s*(.+) => not found$", re.MULTILINE)
_MISSING_VERSION = re.compile(r"^[^:]*: (.+): version [`']([^']+)' not found \(required by (.+)\)$", re.MULTILINE)
_LISTED = re.compile(r"^\s*(?:.+ => )?(/.+) \(0x[0-9a-f]+\)$", re.MULTILINE)


def check(path: str) -> list[Finding]:
    """What prevents this user from loading the shared object at ``path``; if nothing does, the finding ``loads``.

    The first cause that prevents further checks is the last finding.
    """
    path = os.path.abspath(path)
    try:
        return _check(path)
    except MemoryError:
        return [_out_of_memory(path)]


def _check(path: str) -> list[Finding]:
    try:
        content = _read(path)
    except OSError as error:
        return [_unreadable(path, error)]
    if mounts.forbids_execution(path):
        evidence = f"{path} lies{loads.advice(path, _variable_of(path))}"
        return [finding.error("noexec", evidence, "Move the cache as shown, or remount its file system with exec.")]
    broken = _broken(content)
    if broken is not None:
        return [broken]
    refused = _refused(path, Elf(content))
    if refused is not None:
        return [refused]
    return list(_unlinked(path, Elf(content))) or [_loads("Its format, its libraries and its symbols")]


def _loads(what: str) -> Finding:
    remedy = "If it failed elsewhere, run this there: as that user, in that container, with its LD_LIBRARY_PATH."
    return finding.ok("loads", f"{what} are all as they must be here.", remedy)


def _variable_of(path: str) -> str:
    """The variable that moves this cache, recognised by the names of the caches' directories."""
    if "torch_extensions" in path:
        return "TORCH_EXTENSIONS_DIR"
    if "aotinductor_" in path:
        return "TMPDIR"
    triton = config.child_environment().get("TRITON_CACHE_DIR", "")
    is_triton = "triton" in path.split(os.sep) or (triton and path.startswith(os.path.join(triton, "")))
    return "TRITON_CACHE_DIR" if is_triton else "TORCHINDUCTOR_CACHE_DIR"


# Reading it --------------------------------------------------------------------------------------------------------


def _read(path: str) -> bytes:
    return opening.read_regular(path, _check_regular)


def _check_regular(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")
    if status.st_size > entry_files.largest(Kind.NATIVE_CODE):
        raise OSError(errno.EFBIG, "it is larger than any library that safecache reads")


def _unreadable(path: str, error: OSError) -> Finding:
    if error.errno == errno.ENOENT:
        return finding.error(
            "not-found", f"{path} does not exist.", "Compile it again: an entry may outlive its library."
        )
    if error.errno == errno.EPERM:
        return _denied(path, error)
    if error.errno == errno.EACCES:
        return finding.error(
            "permission", f"{_closed(path)}.", "Give this user the right to read it, or a cache of its own."
        )
    if error.errno == errno.ENOMEM:
        return _out_of_memory(path)
    return finding.error("unreadable", f"{path}: {error.strerror}.", "Remove it; it is compiled again.")


def _closed(path: str) -> str:
    """The first name on the way to ``path`` that this user may not access, with its owner and mode."""
    path = os.path.realpath(path)  # a link says nothing about its target
    names = path.split(os.sep)
    for depth in range(1, len(names) + 1):
        step = os.sep.join(names[:depth]) or os.sep
        if not os.access(step, os.R_OK if step == path else os.X_OK, effective_ids=True):
            status = os.stat(step)
            mode = stat.filemode(status.st_mode)
            return f"{step} is {mode}, of uid {status.st_uid} and gid {status.st_gid}; this is uid {os.geteuid()}"
    return f"{path}: permission denied, though owners and modes allow it: {_policy()}"


# Its format --------------------------------------------------------------------------------------------------------


def _broken(content: bytes) -> Finding | None:
    again = "Remove it; it is compiled again."
    try:
        elf = Elf(content)
    except NotElfError as error:
        code = "truncated" if isinstance(error, TruncatedElfError) else "not-elf"
        return finding.error(code, f"It is no shared object: {error}.", again)
    with open("/proc/self/exe", "rb") as file:
        here = Elf(file.read())
    if elf.machine != here.machine:
        built, runs = (MACHINES.get(number, f"e_machine {number}") for number in (elf.machine, here.machine))
        evidence = f"It is built for {built}, this machine is {runs}."
        return finding.error("wrong-architecture", evidence, "Do not share one cache between architectures.")
    if elf.loaded_size > len(content):
        evidence = f"It has {len(content)} bytes, and its segments go to {elf.loaded_size}: it was cut short."
        return finding.error("truncated", evidence, again)
    if not elf.is_library:
        return finding.error("not-a-library", f"Its ELF type is {elf.type}, not that of a shared object (3).", again)
    return None


# Mapping it --------------------------------------------------------------------------------------------------------


def _refused(path: str, elf: Elf) -> Finding | None:
    """Try to map it as the loader does, which runs nothing."""
    try:
        with open(path, "rb") as file:
            mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC).close()
        mmap.mmap(-1, min(max(elf.memory_size, 1), sys.maxsize)).close()
    except OSError as error:
        if error.errno == errno.ENOMEM:
            return _out_of_memory(path)
        return _denied(path, error)
    return None


def _out_of_memory(path: str) -> Finding:
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    allowed = "unlimited" if limit == resource.RLIM_INFINITY else f"{limit >> 20} MiB"
    evidence = f"{path} cannot be mapped for want of memory; this process may have {allowed} (ulimit -v)."
    return finding.error("out-of-memory", evidence, "Raise the limit, or the memory of the container.")


def _denied(path: str, error: OSError) -> Finding:
    evidence = f"{path} may not be mapped as code: {error.strerror}, and its mount is not noexec. {_policy(path)}"
    remedy = "Ask who administers this machine, or use the place that is approved: SAFECACHE_EXEC_DIR."
    return finding.error("denied-by-policy", evidence, remedy)


def _policy(path: str = "") -> str:
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
    return f"{'; '.join(seen)}." if seen else "Neither SELinux nor fapolicyd can be seen from here."


# Linking it --------------------------------------------------------------------------------------------------------


def _unlinked(path: str, elf: Elf) -> Iterator[Finding]:
    listing = _list_libraries(path)
    refusal = _REFUSAL.search(listing)
    if refusal is not None:
        evidence = f"The dynamic loader refuses it: {refusal[1] or refusal[2]}."
        yield finding.error(
            "refused-by-loader", evidence, "Remove the file that it names: compile or install that again."
        )
        return
    missing = _MISSING.findall(listing)
    if missing:
        evidence = f"These libraries it needs are not found: {', '.join(missing)}."
        yield finding.error("missing-library", evidence, "Install them, or name their directory in LD_LIBRARY_PATH.")
    for library, version, by in sorted(set(_MISSING_VERSION.findall(listing))):
        needs = "It needs" if by.startswith(_ITSELF) else f"{by}, which it needs, needs"
        evidence = f"{needs} {version} of {library}, and the one here has no such version."
        yield finding.error(
            "missing-version", evidence, "Build on the oldest system that shares the cache, or not share it."
        )
    if missing:
        return
    yield from _unresolved(elf, _LISTED.findall(listing))


def _unresolved(elf: Elf, libraries: list[str]) -> Iterator[Finding]:
    try:
        undefined = sorted(set(elf.undefined()) - _defined([*libraries, _executable()]))
    except NotElfError as error:
        # The loader does not use section headers: debuggers and linkers do.
        yield _loads(
            f"Its section headers are damaged ({error}), and its symbols not known. Its format and its libraries"
        )
        return
    if undefined:
        shown = ", ".join(undefined[:_SHOWN_SYMBOLS]) + (", …" if len(undefined) > _SHOWN_SYMBOLS else "")
        evidence = f"Symbols that neither its libraries nor Python define, {len(undefined)} in all: {shown}."
        yield finding.error("undefined-symbol", evidence, "It was built against another torch or Python: remove it.")


def _list_libraries(path: str) -> str:
    """What the dynamic loader says it would load (ld.so(8)): it maps the libraries of a program, but does not run them.

    The program is Python, with ``path`` preloaded, for two reasons: libraries are searched for as they are for Python,
    and if ``path`` were the program, the loader would run the auditing library that it may name.
    """
    folder, name = os.path.split(path)
    with open(path, "rb") as file:
        # These characters have a meaning in LD_PRELOAD. By its own name, libraries beside it are found as well.
        preloaded = f"/proc/self/fd/{file.fileno()}" if re.search("[ :]", name) else f"./{name}"
        environment = {key: value for key, value in config.child_environment().items() if not key.startswith("LD_")}
        others = config.child_environment().get("LD_PRELOAD", "")
        environment |= {"LD_TRACE_LOADED_OBJECTS": "1", "LD_PRELOAD": f"{preloaded} {others}".rstrip()}
        command = [_loader(), "--library-path", _library_path(), _executable()]
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                env=environment,
                pass_fds=[file.fileno()],
                capture_output=True,
                encoding="utf-8",
                errors="surrogateescape",
                timeout=_LOADER_TIMEOUT,
            )
        except subprocess.TimeoutExpired:
            return f"{_FATAL}: it does not come to an end in {_LOADER_TIMEOUT} seconds"
    if done.returncode < 0:
        return f"{_FATAL}: signal {-done.returncode} ends it"
    return done.stdout + done.stderr


def _library_path() -> str:
    torch = importlib.util.find_spec("torch")
    known = config.child_environment().get("LD_LIBRARY_PATH", "").split(":")
    # Inductor's kernels rely on torch's libraries being there already.
    known += [os.path.join(folder, "lib") for folder in (torch and torch.submodule_search_locations) or ()]
    return ":".join(os.path.abspath(folder) for folder in known if folder)


def _executable() -> str:
    return os.readlink("/proc/self/exe")


def _loader() -> str:
    """The dynamic loader of this process, among the files that it has mapped."""
    return next(path for path in _mapped() if re.match(r"ld(64)?[-.]", os.path.basename(path)))


def _mapped() -> list[str]:
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
        paths = [line.split(maxsplit=5)[5].rstrip("\n") for line in file if line.count(" /")]
    return list(dict.fromkeys(path for path in paths if os.path.isfile(path)))


def _defined(libraries: list[str]) -> set[str]:
    """The symbols that these libraries define, as they would for the process that loads them."""
    symbols: set[str] = set()
    for path in libraries:
        try:
            symbols |= Elf(_read(path)).defined()
        except (NotElfError, OSError):
            continue  # the loader has mapped it: it is valid, but we cannot read it
    return symbols
