"""Extensions that ninja builds: each object and library is bound to everything it was built from.

That is its command, and the content of its sources and of the headers that the compiler reported reading (it does not
report system headers; torch's are bound by torch's version). Ninja goes by file times alone, which restoring an old
build or unpacking a source can set to anything. Functions are told apart by a digest of their bytecode, without the
path of their file, so that a checkout elsewhere has the same.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import os
import re
import shutil
import stat
import subprocess
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from safecache import compiles
from safecache.code import exec_directory
from safecache.code.lock_guards import Lock
from safecache.errors import EntryRefusedError
from safecache.files import filesystem, opening, parallel, private_directory
from safecache.places.layout import CodeFile
from safecache.reporting import events
from safecache.reporting.kinds import Reason
from safecache.reporting.report import Refusal
from safecache.session import Part, inherit
from safecache.signing import trust
from safecache.store import attestations, gate, manifests
from safecache.tiers import directory_faults
from safecache.tiers.directory_faults import Immovable, Unreadable

__all__ = ["Build", "admit", "build", "locked_late"]

# The suffix torch adds to the name of an extension that a process loads again after its sources have changed.
_VERSION = re.compile(r"_v\d+$")
# A space in a path is written "$ ".
_WORD = re.compile(r"(?:\$.|[^ $])+")
_OUTDATED = Refusal(Reason.OUTDATED, "its sources, or the command that builds it, have changed since it was built")
# For a user's own few headers, threads cost more than they save; nvcc also reports those of CUDA and torch.
_MANY = 64

# Where this process has built, or found out that nothing was to be built; and in which directory instead.
_verified: Part[dict[str, str]] = Part(dict, inherit)
# The statements about what this process has built, by path: it may have no signing key to seal them with.
_built: Part[dict[str, Mapping[str, Any]]] = Part(dict, inherit)


class _Step(NamedTuple):
    """One build step. ``how``: all that build.ninja says about the file ``output`` and no other."""

    output: str
    inputs: tuple[str, ...]
    how: bytes
    tells_headers: bool


class Build:
    """The build of the extension ``name`` in ``directory``, against what its build.ninja, ``text``, asks for now."""

    def __init__(self, name: str, directory: str, text: str) -> None:
        self._directory = directory
        # The objects are the same extension's, whichever version suffix the library has.
        self._extension = _VERSION.sub("", name)
        self._steps = _steps(text)
        self._outputs = {step.output for step in self._steps}
        self._sources: dict[str, bytes] = {}
        self._began = 0
        # Digests of the outputs that are trusted only as private.
        self._private: dict[str, bytes] = {}

    def is_attested(self) -> bool:
        """Whether every output exists, was built here or sealed by a trusted signing key, and is up to date."""
        self._private.clear()
        self._sources = self._digests({path for step in self._steps for path in step.inputs} - self._outputs)
        try:
            return all(self._judge(step) is None for step in self._steps) and bool(self._steps) and not self._private
        except OSError:
            return False

    def settle(self) -> None:
        """Quarantine every output that ninja must not reuse.

        Raises EntryRefusedError in strict mode, and Unsettled if one cannot be quarantined.
        """
        for step in self._steps:
            self._settle(step, self._path(step.output))
        # Sources may have changed while the outputs were judged: the build reads them as they are now.
        self._sources = self._digests({path for step in self._steps for path in step.inputs} - self._outputs)
        self._began = time.time_ns()

    def keep(self) -> None:
        """Attest all outputs that ninja has made since settle()."""
        headers = self._headers()
        for step in self._steps:
            path = self._path(step.output)
            if os.path.lexists(path) and not self._is_as_it_was(step):
                self._keep(step, path, headers.get(step.output))

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name)

    def _name(self, step: _Step) -> str:
        return f"{self._extension}/{step.output}"

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
        if refusal is not None and refusal.reason in trust.UNATTESTED:
            refusal = judge()
            if refusal is None:
                self._private[step.output] = digest
        if refusal is not None and trust.is_observed(refusal, file.kind, path):
            refusal, self._private[step.output] = None, digest
        if refusal is None:
            attestations.attest_in_process(path, digest=digest)
        return refusal

    def _is_of_now(self, step: _Step, inputs: object) -> bool:
        if not isinstance(inputs, dict):
            return False
        headers = _unpacked(inputs.get("headers"))
        return headers is not None and inputs.get("sha256") == self._inputs(step, headers)

    def _inputs(self, step: _Step, headers: Iterable[str]) -> str:
        """The SHA-256, in hex, of all that a file is built from."""
        paths = sorted({*step.inputs, *headers})
        known = {path: self._sources[path] for path in paths if path in self._sources}
        known |= self._digests(set(paths) - set(known))
        digest = hashlib.sha256(step.how)
        for path in paths:
            digest.update(b"\0".join([b"", os.fsencode(path), known[path]]))
        return digest.hexdigest()

    def _digests(self, paths: set[str]) -> dict[str, bytes]:
        """Digests by path; empty for a path that is missing or not a regular file."""
        ordered = sorted(paths)
        read = parallel.map_in_threads(self._digest, ordered) if len(ordered) > _MANY else map(self._digest, ordered)
        return dict(zip(ordered, read, strict=True))

    def _digest(self, path: str) -> bytes:
        try:
            return opening.digest_regular(self._path(path), _check_file)
        except OSError:
            return b""

    def _is_as_it_was(self, step: _Step) -> bool:
        """Whether ninja left the output alone since it was attested, or found to be private and unsealed."""
        private = self._private.pop(step.output, None)
        if private is not None and private == self._digest(step.output):
            return True
        try:
            return self._judge(step) is None and self._private.pop(step.output, None) is None
        except OSError:
            return False

    def _keep(self, step: _Step, path: str, headers: list[str] | None) -> None:
        told = headers or []
        is_known = headers is not None or not step.tells_headers
        # An output whose inputs are unknown, or changed meanwhile, is built again next time.
        inputs = self._inputs(step, told)
        if not is_known or self._has_changed({*step.inputs, *told}):
            inputs = ""
        also = {"inputs": {"sha256": inputs, "headers": _packed(told)}}
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

    def _headers(self) -> dict[str, list[str]]:
        """The headers that the compiler reported reading, by output, as ninja has recorded them."""
        command = ["ninja", "-t", "deps", *(step.output for step in self._steps if step.tells_headers)]
        done = subprocess.run(command, cwd=self._directory, capture_output=True, check=False)
        found: dict[str, list[str]] = {}
        told: list[str] = []
        for line in os.fsdecode(done.stdout).splitlines():
            if line.startswith("    "):
                told.append(line[4:])
            elif line.endswith("(VALID)"):
                told = found[line.rpartition(": #deps ")[0]] = []
        return found


def _steps(text: str) -> list[_Step]:
    """The files that torch's build.ninja makes, each after those it is made from."""
    rules = {block.split(None, 2)[1]: block for block in text.split("\n\n") if block.startswith("rule ")}
    lines = text.splitlines()
    common = [line for line in lines if not line.startswith(("build ", "default "))]
    found = []
    for line in lines:
        output, separator, rest = line.removeprefix("build ").partition(": ")
        if line.startswith("build ") and separator:
            rule, *inputs = (word.replace("$ ", " ") for word in _WORD.findall(rest))
            how = "\n".join([line, *common]).encode(errors="surrogateescape")
            found.append(_Step(output.replace("$ ", " "), tuple(inputs), how, "\n  deps = " in rules.get(rule, "")))
    return found


def _check_file(status: os.stat_result) -> None:
    """Sources and headers may have any owner, and may be links."""
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a file")


def _packed(headers: list[str]) -> str:
    """The paths, compressed: CUDA has some thousand headers."""
    return base64.b64encode(zlib.compress(os.fsencode("\n".join(headers)))).decode()


def _unpacked(packed: object) -> list[str] | None:
    try:
        return os.fsdecode(zlib.decompress(base64.b64decode(str(packed), validate=True))).splitlines()
    except (ValueError, zlib.error):
        return None


@contextmanager
def locked_late(*, translates: bool) -> Iterator[None]:
    """In this block the lock of a build directory is taken by build(), and only if something is to be built.

    Anyone who can write there could hold it. Not if torch ``translates`` sources there first, as it does on ROCm.
    """

    def guard(lock: Lock) -> None:
        if compiles.current.extension_lock is None and os.path.basename(lock.path) == "lock":
            compiles.current.extension_lock = lock
            if not translates:
                return
        lock.take()

    with compiles.scope(lock_guard=guard, extension_lock=None):
        yield


def build(name: str, directory: str, run: Callable[..., None], flags: Iterable[str], *, standalone: bool) -> None:
    """Have ``run`` build the extension, unless all of it is attested: in that directory, or in a private one.

    ``run`` is torch's build with the directory, and ``extra_ldflags``, of which ``flags`` are the caller's, and
    ``verbose`` as it wants them. Raises what that raises; EntryRefusedError for a refused file in strict mode, and for
    a ``standalone`` program, whose path torch reports, if something that cannot be quarantined is in the way.
    """
    text = _plan(run, flags)
    directory_faults.check(directory)
    planned = Build(name, directory, text)
    _verified.now[directory] = directory
    if planned.is_attested():
        return
    if compiles.current.extension_lock is not None:
        compiles.current.extension_lock.take()
    try:
        planned.settle()
    except Immovable as error:
        if standalone:
            raise EntryRefusedError(f"safecache: {error.filename}: {error.evidence}.") from error
        _verified.now[directory] = _build_privately(name, directory, text, run, error)
        return
    run(directory)
    planned.keep()


def _plan(run: Callable[..., None], flags: Iterable[str]) -> str:
    """The build.ninja that torch would write now; it does not depend on the directory."""
    directory = tempfile.mkdtemp(dir=private_directory.process_directory())
    try:
        with compiles.scope(is_planning=True):
            # A copy, since torch appends to it.
            run(directory, extra_ldflags=list(flags), verbose=False)
        with open(os.path.join(directory, "build.ninja"), errors="surrogateescape") as file:
            return file.read()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _build_privately(name: str, directory: str, text: str, run: Callable[..., None], error: Immovable) -> str:
    """Build in a private directory that lasts as long as this process; returns it."""
    private = os.path.join(tempfile.mkdtemp(dir=private_directory.process_directory()), name)
    planned = Build(name, private, text)
    planned.settle()
    run(private)
    planned.keep()
    why = f"{error.filename}: {error.evidence}"
    message = f"the build directory {directory} cannot be used: {why}. {name} was built in {private}."
    remedy = "Remove what is in the way, or let TORCH_EXTENSIONS_DIR name another directory."
    events.report(Reason.UNUSABLE_DIRECTORY, message, cause=directory, remedy=remedy, error=error)
    return private


def admit(directory: str, name: str) -> str:
    """Where to load the library ``name`` from. Raises EntryRefusedError in default mode too, and OSError."""
    place = _verified.now.get(directory)
    path = os.path.join(place or directory, name)
    return exec_directory.executable_path(path) if place is None else exec_directory.load_path(CodeFile(path, place))
