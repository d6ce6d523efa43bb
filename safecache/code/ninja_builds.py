"""What ninja builds: each object and library is bound to everything it was built from.

That is its command, the content of its sources and of the headers that the compiler reported reading, and what the
caller states besides. Ninja goes by file times alone, which restoring an old build or unpacking a source can set to
anything; and it takes whatever lies there with a recent time. A build that is attested needs no ninja.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import os
import re
import shutil
import stat
import string
import struct
import subprocess
import sys
import sysconfig
import threading
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType
from typing import Any, NamedTuple

from safecache.errors import EntryRefusedError
from safecache.files import filesystem, folders, opening, ownership, parallel
from safecache.places import ours
from safecache.places.layout import CodeFile
from safecache.reporting import events, report
from safecache.reporting.kinds import Count, Kind, Reason
from safecache.reporting.report import Refusal
from safecache.session import Part, inherit
from safecache.settings import config
from safecache.signing import trust
from safecache.store import attestations, gate, manifests
from safecache.tiers.directory_faults import Immovable, Unreadable

__all__ = ["Build", "attest_while", "find_builds", "find_compilers", "plan"]

# The suffix torch adds to the name of an extension that a process loads again after its sources have changed.
_VERSION = re.compile(r"_v\d+$")
# A space in a path is written "$ "; behind "|" are inputs that are not on the command line.
_WORD = re.compile(r"(?:\$.|[^ $])+")
_SEPARATORS = ("|", "||")
_OUTDATED = Refusal(Reason.OUTDATED, "its sources, or the command that builds it, have changed since it was built")
# For a user's own few headers, threads cost more than they save; nvcc also reports those of CUDA and torch.
_MANY = 64
# Nanoseconds. A file that changed more recently could change again within the same tick of its clock; and a file
# server's clock may differ from ours.
_SETTLED = 60_000_000_000
# Seconds between looks at what ninja has finished.
_INTERVAL = 0.25
_LOG, _DEPS = ".ninja_log", ".ninja_deps"
_CUDA = "cuda_home = "
_UNSEALED = (ours.FOLDER, ours.UNSEALED)
_DEPS_HEADER = b"# ninjadeps\n" + struct.pack("<i", 4)
# Of the first word of a record in it, the bits that are its size; the last one tells a path from what an output needs.
_SIZE = 0x7FFFFFFF

# The statements about what this process has built, by path: it may have no signing key to seal them with.
_built: Part[dict[str, Mapping[str, Any]]] = Part(dict, inherit)
# The digests of what was read, which extensions share, with what no writer can leave as it was.
_read_by_path: Part[dict[str, tuple[list[int], bytes]]] = Part(dict, inherit)


class _Step(NamedTuple):
    """One build step. ``how``: all that build.ninja says about the file ``output`` and no other."""

    output: str
    inputs: tuple[str, ...]
    how: str
    tells_headers: bool


class _Deps(NamedTuple):
    """What a compiler reported: the ``headers`` of an output, whose file then had the time ``moment``, in ns."""

    moment: int
    headers: list[str]


class Build:
    """The build of the extension ``name`` in ``directory``, against what its build.ninja, ``text``, asks for now.

    ``also``: what else decides about its outputs, such as the versions of packages whose headers no compiler reports.
    ``tools``: the paths of the compilers, whose content decides as well. ``anchors``: by directory, the name that it
    has in records, so that the same files in another directory are no other build.
    """

    def __init__(
        self,
        name: str,
        directory: str,
        text: str,
        *,
        also: str = "",
        tools: Sequence[str] = (),
        anchors: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._directory = directory
        self._extension = name
        self._also = also
        self._tools = tools
        self._anchors = anchors
        longest_first = sorted(anchors, key=len, reverse=True)
        self._anchored = re.compile(rf"({'|'.join(map(re.escape, longest_first))})(?=/|\s|$)") if anchors else None
        self._steps = _steps(text)
        self._outputs = {step.output for step in self._steps}
        self._sources: dict[str, bytes] = {}
        self._began = 0
        # The outputs that are trusted only as private.
        self._unsealed: set[str] = set()

    def is_attested(self) -> bool:
        """Whether every output exists, was built here or sealed by a trusted signing key, and is up to date."""
        self._unsealed.clear()
        self._read_sources()
        try:
            return all(self._judge(step) is None for step in self._steps) and bool(self._steps) and not self._unsealed
        except OSError:
            return False

    def settle(self) -> None:
        """Quarantine every output that ninja must not reuse.

        Raises EntryRefusedError in strict mode, and Unsettled if one cannot be quarantined.
        """
        self._keep_unsealed()
        for step in self._steps:
            self._settle(step, self._path(step.output))
        # Sources may have changed while the outputs were judged: the build reads them as they are now.
        self._read_sources()
        self._began = time.time_ns()

    def attest(self, outputs: Collection[str], reported: Mapping[str, _Deps], *, is_over: bool) -> set[str]:
        """Attest those of its outputs that are among ``outputs``, which ninja has finished since settle(); return them.

        While ninja runs, not those whose headers it has not recorded yet. Raises OSError if one cannot be read.
        """
        done = set()
        for step in self._steps:
            path = self._path(step.output)
            if step.output in outputs and os.path.lexists(path):
                deps = reported.get(step.output)
                is_current = deps is not None and os.stat(path).st_mtime_ns <= deps.moment
                headers = deps.headers if deps is not None and is_current else None
                if is_over or headers is not None or not step.tells_headers:
                    self._attest(step, path, headers)
                    done.add(step.output)
        return done

    def adoptions(self) -> list[tuple[str, Callable[[], bool]]]:
        """A step for each output: it seals what ninja takes for up to date, and is False if that is sealed already.

        A step raises EntryRefusedError for what others could have written, or ninja would build again, and OSError.
        """
        with suppress(FileNotFoundError), folders.open_subdirectory(self._directory, _UNSEALED) as kept:
            names = kept.names()
            for step in self._steps:
                path = self._path(step.output)
                if os.path.basename(path) in names and not self._is_sealed(step):
                    with folders.open_parent(self._directory, path) as (parent, name):
                        kept.rename(name, parent, name)
        reported = _read_deps(self._directory)
        return [(self._path(step.output), partial(self._adopt, step, reported)) for step in self._steps]

    def _adopt(self, step: _Step, reported: Mapping[str, _Deps]) -> bool:
        self._read_sources()
        if self._is_sealed(step):
            return False
        path = self._path(step.output)
        opening.digest_regular(path, opening.check_private(path), flags=os.O_NOFOLLOW)
        command = ["ninja", "-n", "-f", self._path("build.ninja"), step.output]
        said = subprocess.run(command, cwd=self._directory, capture_output=True, text=True, check=False).stdout
        if "no work to do" not in said:
            raise EntryRefusedError(f"{Reason.OUTDATED.value}: ninja would build it again")
        self._began = time.time_ns()
        return bool(self.attest({step.output}, reported, is_over=True))

    def _is_sealed(self, step: _Step) -> bool:
        try:
            return self._judge(step) is None and step.output not in self._unsealed
        except OSError:
            return False

    def _keep_unsealed(self) -> None:
        """Move what nobody has sealed, in a directory of this user alone, to where adoptions() finds it."""
        settings = config.current()
        if settings.strict or settings.observes or ownership.why_not_private(self._directory) is not None:
            return
        moved = 0
        paths = [self._path(step.output) for step in self._steps if self._is_unsealed(step)]
        if paths:
            # What cannot be moved there goes to quarantine.
            with suppress(OSError), folders.open_subdirectory(self._directory, _UNSEALED, make=True) as kept:
                for path in paths:
                    with folders.open_parent(self._directory, path) as (parent, name):
                        parent.rename(name, kept, name)
                        moved += 1
        if moved:
            evidence = f"{moved} files have no sealed record, as stock builds them"
            remedy = f"If nobody else could write there, stop and run safecache adopt {self._directory} to use them."
            where = f"Building them anew; the old ones are kept in {os.path.join(self._directory, *_UNSEALED)}."
            report.refuse(Refusal(Reason.UNSEALED, evidence, remedy), Kind.NATIVE_CODE, self._directory, where)

    def _is_unsealed(self, step: _Step) -> bool:
        try:
            refusal = self._judge(step)
        except OSError:
            return False
        return refusal is not None and refusal.reason is Reason.UNSEALED

    def _read_sources(self) -> None:
        self._sources = self._digests({path for step in self._steps for path in step.inputs} - self._outputs)

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name)

    def _name(self, step: _Step) -> str:
        return f"{self._extension}/{os.path.relpath(self._path(step.output), self._directory)}"

    def _settle(self, step: _Step, path: str) -> None:
        try:
            is_good = gate.accept_or_quarantine(CodeFile(path, self._directory), lambda: self._judge(step))
        except FileNotFoundError:
            return
        if not is_good and os.path.lexists(path):
            raise Immovable(errno.EBUSY, "it is refused, and replaced as often as it is moved away", path)

    def _judge(self, step: _Step) -> Refusal | None:
        """None if the output may stay: attested, or else noted as private. Raises OSError if there is none."""
        path = self._path(step.output)
        status = filesystem.retry(lambda: filesystem.lstat(path), filesystem.READING)
        try:
            opening.check_regular(status)
            digest = opening.digest_regular(path, opening.check_regular, flags=os.O_NOFOLLOW)
            refusal = self._judge_content(step, path, digest)
        except opening.UnusableEntry as unusable:
            return unusable.refusal
        except Unreadable as error:  # there is no other directory to build in, and ninja only builds what is missing
            refusal = Refusal(Reason.UNREADABLE, error.evidence)
        return None if refusal is None else refusal._replace(found=status)

    def _judge_content(self, step: _Step, path: str, digest: bytes) -> Refusal | None:
        def objection(stated: Mapping[str, Any]) -> Refusal | None:
            return None if self._is_of_now(step, stated.get("inputs")) else _OUTDATED

        if path in _built.now and _built.now[path]["sha256"] == digest.hex():
            return objection(_built.now[path])
        file = CodeFile(path, self._directory, name=self._name(step))
        judge = partial(gate.refusal_for_content, file, digest, [*manifests.records(file)], objection=objection)
        refusal = judge(is_private=False)
        if refusal is None:
            events.count(Count.CODE_VERIFIED)
        if refusal is not None and refusal.reason in trust.UNATTESTED:
            refusal = judge()
            if refusal is None:
                self._unsealed.add(step.output)
        if refusal is not None and trust.is_observed(refusal, file.kind, path):
            refusal = None
            self._unsealed.add(step.output)
        if refusal is None:
            attestations.attest_in_process(path, digest=digest)
        return refusal

    def _is_of_now(self, step: _Step, inputs: object) -> bool:
        if not isinstance(inputs, dict):
            return False
        headers = self._unpacked(inputs.get("headers"))
        if headers is None:
            return False
        moment, stamp = inputs.get("moment"), inputs.get("stamp")
        if isinstance(moment, int) and stamp and stamp == self._stamp(step, headers, moment):
            return True
        return inputs.get("sha256") == self._inputs(step, headers.values())

    def _inputs(self, step: _Step, headers: Iterable[str]) -> str:
        """The SHA-256, in hex, of all that a file is built from."""
        paths = {*step.inputs, *headers}
        known = {path: self._sources[path] for path in paths if path in self._sources}
        return self._combined(step, known | self._digests(paths - set(known)))

    def _stamp(self, step: _Step, headers: Mapping[str, str], moment: int) -> str:
        """As _inputs(), of headers by name; those that had changed long before ``moment``, in ns, are not read.

        Of these it takes what no writer can leave as it was; "" if one is missing.
        """
        lines, read = list[str](), set(step.inputs)
        try:
            for name, path in headers.items():
                device, inode, size, changed = filesystem.identity(os.stat(os.path.join(self._directory, path)))
                if moment - changed > _SETTLED:
                    lines.append(f"{name} {device} {inode} {size} {changed}")
                else:
                    read.add(path)
        except OSError:
            return ""
        return hashlib.sha256(os.fsencode("\n".join([self._combined(step, self._digests(read)), *lines]))).hexdigest()

    def _combined(self, step: _Step, known: Mapping[str, bytes]) -> str:
        digest = hashlib.sha256(os.fsencode(self._anchor(step.how) + self._also))
        for name, path in sorted((self._anchor(path), path) for path in known):
            digest.update(b"\0".join([b"", os.fsencode(name), known[path]]))
        return digest.hexdigest()

    def _anchor(self, text: str) -> str:
        """The text with the name in place of each directory that has one."""
        return self._anchored.sub(lambda found: self._anchors[found[1]], text) if self._anchored else text

    def _digests(self, paths: set[str]) -> dict[str, bytes]:
        """Digests by path; empty for a path that is missing or not a regular file."""
        ordered = sorted(paths)
        read = parallel.map_in_threads(self._digest, ordered) if len(ordered) > _MANY else map(self._digest, ordered)
        return dict(zip(ordered, read, strict=True))

    def _digest(self, name: str) -> bytes:
        path = self._path(name)
        try:
            identity = filesystem.identity(os.stat(path))
            before, digest = _read_by_path.now.get(path, (None, b""))
            if before != identity:
                digest = opening.digest_regular(path, _check_file)
        except OSError:
            return b""
        if time.time_ns() - identity[-1] > _SETTLED:
            _read_by_path.now[path] = identity, digest
        return digest

    def _attest(self, step: _Step, path: str, headers: list[str] | None) -> None:
        told = {self._anchor(header): header for header in [*self._tools, *(headers or [])]}
        is_known = headers is not None or not step.tells_headers
        inputs: dict[str, object] = {"sha256": "", "headers": _packed(told)}
        # An output whose inputs are unknown, or changed meanwhile, is built again next time.
        if is_known and not self._has_changed({*step.inputs, *told.values()}):
            inputs["sha256"] = self._inputs(step, told.values())
            inputs |= {"moment": self._began, "stamp": self._stamp(step, told, self._began)}
        also = {"inputs": inputs}
        gate.attest_file(CodeFile(path, self._directory, name=self._name(step)), also=also)
        digest = opening.digest_regular(path, opening.check_regular, flags=os.O_NOFOLLOW)
        _built.now[path] = {"sha256": digest.hex(), **also}

    def _has_changed(self, paths: set[str]) -> bool:
        """Whether one of them is missing, or has changed since ninja was started."""
        return any(self._is_changed(path) for path in paths - self._outputs)

    def _is_changed(self, path: str) -> bool:
        if path in self._sources:
            return self._sources[path] == b"" or self._digest(path) != self._sources[path]
        try:
            return os.stat(self._path(path)).st_ctime_ns >= self._began
        except OSError:
            return True

    def _unpacked(self, packed: object) -> dict[str, str] | None:
        """The paths of headers, by the names that their record has for them; None if they cannot be read."""
        try:
            names = os.fsdecode(zlib.decompress(base64.b64decode(str(packed), validate=True))).splitlines()
        except (ValueError, zlib.error):
            return None
        directories = {name: directory for directory, name in self._anchors.items()}
        parts = {name: name.partition("/") for name in names}
        return {name: f"{directories.get(top, top)}{slash}{rest}" for name, (top, slash, rest) in parts.items()}


@contextmanager
def attest_while(builds: Sequence[Build], directory: str) -> Iterator[None]:
    """In this block ninja runs, in ``directory``; what it finishes is attested at once, whatever ends it.

    So after a kill or on a full disk the next start goes on from there. Raises OSError if an output cannot be read.
    """
    known, ended = _read_log(directory), threading.Event()

    def attest(*, is_over: bool) -> None:
        lines = {line.split("\t")[3]: line for line in _read_log(directory) - known}
        reported = _read_deps(directory) if lines else {}
        for build in builds:
            known.update(lines[output] for output in build.attest(lines, reported, is_over=is_over))

    def watch() -> None:
        # An error is raised at the end, if it lasts.
        with suppress(Exception):
            while not ended.wait(_INTERVAL):
                attest(is_over=False)

    watcher = threading.Thread(target=watch, name="safecache-ninja", daemon=True)
    watcher.start()
    has_failed = True
    try:
        yield
        has_failed = False
    finally:
        ended.set()
        watcher.join()
        with suppress(OSError) if has_failed else nullcontext():
            attest(is_over=True)


def _read_log(directory: str) -> set[str]:
    """The lines of ninja's log: another one each time that an output is finished."""
    return {line for line in os.fsdecode(_read(directory, _LOG)).splitlines() if line.count("\t") >= 4}


def _read_deps(directory: str) -> dict[str, _Deps]:
    """What compilers have reported, by output. Source: ninja's src/deps_log.h, of version 1.9 to 1.13.

    Not by ``ninja -t deps``, which repairs the file, and so must not run beside the ninja that writes it.
    """
    content = _read(directory, _DEPS)
    found, paths, at = dict[str, _Deps](), list[str](), len(_DEPS_HEADER)
    if not content.startswith(_DEPS_HEADER):
        return found
    try:
        while at < len(content):
            (size,) = struct.unpack_from("<I", content, at)
            record = content[at + 4 : at + 4 + (size & _SIZE)]
            at += 4 + (size & _SIZE)
            if size > _SIZE:
                output, low, high, *headers = struct.unpack(f"<{(size & _SIZE) // 4}I", record)
                found[paths[output]] = _Deps(high << 32 | low, [paths[header] for header in headers])
            else:  # a path, its padding and a checksum
                paths.append(os.fsdecode(record[:-4].rstrip(b"\0")))
    except (struct.error, IndexError, ValueError):
        pass  # the rest is still being written
    return found


def _read(directory: str, name: str) -> bytes:
    try:
        return opening.read_regular(os.path.join(directory, name), _check_file)
    except (OSError, opening.UnusableEntry):
        return b""


def find_builds(root: str) -> Iterator[Build]:
    """The builds below ``root``, by their build.ninja, whoever wrote it. Raises OSError."""
    for directory, _, names in os.walk(root):
        if "build.ninja" in names:
            path = os.path.join(directory, "build.ninja")
            yield plan(path, os.fsdecode(opening.read_regular(path, opening.check_private(path))))


def plan(path: str, text: str) -> Build:
    """The build of which ``text`` is the build.ninja at ``path``, written or not."""
    directory = os.path.dirname(os.path.realpath(path))
    cuda = next((line[len(_CUDA) :] for line in text.splitlines() if line.startswith(_CUDA)), os.devnull)
    anchors = {
        cuda: "$cuda",
        os.path.realpath(cuda): "$cuda",
        sysconfig.get_path("purelib"): "$packages",
        directory: "$build",
    }
    modules = os.path.dirname(directory)
    if os.path.basename(modules) == "cached_ops":  # FlashInfer's, beside which its generated sources are
        anchors[os.path.dirname(modules)] = "$workspace"
    # No compiler reports the headers of these packages, which FlashInfer has it search as a system's.
    also = [f"{name} {_version(name)}" for name in ("flashinfer-python", "apache-tvm-ffi")]
    # The objects are the same extension's, whichever version suffix torch gives the library.
    name = _VERSION.sub("", os.path.splitext(os.path.basename(text.rpartition("default ")[2].strip()))[0])
    tools = find_compilers(text)
    return Build(name, directory, text, also="\n".join([sys.version, *also]), tools=tools, anchors=anchors)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def find_compilers(text: str) -> tuple[str, ...]:
    """The paths of the compilers that build.ninja names, as far as they are found."""
    variables: dict[str, str] = {}
    for line in text.splitlines():
        name, separator, value = line.partition(" = ")
        if separator and not name.startswith(" "):
            variables[name] = string.Template(value).safe_substitute(variables)
    commands = (variables.get(name, "").split() for name in ("cc", "cxx", "nvcc"))
    return tuple(found for words in commands if words and (found := shutil.which(words[0])))


def _steps(text: str) -> list[_Step]:
    """The files that a build.ninja makes, each after those it is made from."""
    rules = {block.split(None, 2)[1]: block for block in text.split("\n\n") if block.startswith("rule ")}
    lines = text.splitlines()
    common = [line for line in lines if not line.startswith(("build ", "default "))]
    found = []
    for line in lines:
        output, separator, rest = line.removeprefix("build ").partition(": ")
        if line.startswith("build ") and separator:
            rule, *words = (word.replace("$ ", " ") for word in _WORD.findall(rest))
            inputs = tuple(word for word in words if word not in _SEPARATORS)
            tells_headers = "\n  deps = " in rules.get(rule, "")
            found.append(_Step(output.replace("$ ", " "), inputs, "\n".join([line, *common]), tells_headers))
    return found


def _packed(names: Iterable[str]) -> str:
    """The names of headers, compressed: CUDA has some thousand."""
    return base64.b64encode(zlib.compress(os.fsencode("\n".join(names)))).decode()


def _check_file(status: os.stat_result) -> None:
    """Sources and headers may have any owner, and may be links."""
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a file")
