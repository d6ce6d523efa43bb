"""Extensions that ninja builds: each object and library is bound to all that it was built of.

That is its command, the content of its sources, and of the headers that the compiler said it has read (those that it
takes for the system's own it does not tell; torch's are bound by torch's version). Ninja goes by times alone, which are
those that somebody has set who restores an old build, or unpacks a source. Functions are told apart by a digest of
their bytecode, without the path of their file: a checkout elsewhere has the same.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import os
import re
import stat
import subprocess
import time
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from safecache.code import gate
from safecache.files import filesystem, opening, parallel
from safecache.reporting.kinds import Kind, Reason
from safecache.signing import trust
from safecache.signing.trust import Refusal
from safecache.store import manifests
from safecache.tiers.directory_faults import Immovable, Unreadable

__all__ = ["Build", "digest"]

# What a call does, in names that are the same on all Pythons, and on torch's serializable stand-in for a code object.
_FIELDS = (
    *("co_name", "co_firstlineno", "co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_flags", "co_code"),
    *("co_consts", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_exceptiontable"),
)


def digest(code: Any, module: str) -> str:
    """Of a code object, in hex, and the name of the module whose globals it uses."""
    return hashlib.sha256(json.dumps([module, _stated(code)]).encode()).hexdigest()


def _stated(value: Any) -> Any:
    """In JSON, the same in every process. Types are told apart, as 1, 1.0 and True are three constants."""
    if hasattr(value, "co_code"):
        return [[name, _stated(getattr(value, name, None))] for name in _FIELDS]
    if isinstance(value, tuple):
        return ["tuple", *map(_stated, value)]
    if isinstance(value, frozenset):
        return ["frozenset", *sorted(map(_stated, value), key=json.dumps)]
    return [type(value).__name__, repr(value)]


# What torch adds to the name of an extension that a process loads again, after its sources have changed.
_VERSION = re.compile(r"_v\d+$")
# A blank in a path is written "$ ".
_WORD = re.compile(r"(?:\$.|[^ $])+")
_OUTDATED = Refusal(Reason.OUTDATED, "its sources, or the command that builds it, have changed since it was built")
# Threads cost more than they spare for the few headers of a user's own; nvcc tells of those of CUDA and torch too.
_MANY = 64

# What was stated of what this process has built, by path: it may have no key to seal that with.
_built: dict[str, Mapping[str, Any]] = {}


class _Step(NamedTuple):
    """``how``: all that build.ninja says of the file ``output``, and of no other."""

    output: str
    inputs: tuple[str, ...]
    how: bytes
    tells_headers: bool


class Build:
    """What is in ``directory`` of the extension ``name``, against what its build.ninja, ``text``, would make now."""

    def __init__(self, name: str, directory: str, text: str) -> None:
        self._directory = directory
        # Its objects are those of the same extension whichever of these names the library has.
        self._extension = _VERSION.sub("", name)
        self._steps = _steps(text)
        self._outputs = {step.output for step in self._steps}
        self._sources: dict[str, bytes] = {}
        self._began = 0
        # What nothing attests but its place, and what was in it.
        self._private: dict[str, bytes] = {}

    def is_attested(self) -> bool:
        """Whether all is there, was built here or sealed by a trusted key, and of what is there now."""
        self._private.clear()
        self._sources = self._digests({path for step in self._steps for path in step.inputs} - self._outputs)
        try:
            return all(self._judge(step) is None for step in self._steps) and bool(self._steps) and not self._private
        except OSError:
            return False

    def settle(self) -> None:
        """Move away all that ninja is not to find. Raises EntryRefusedError in strict mode, Unsettled if it cannot."""
        for step in self._steps:
            self._settle(step, self._path(step.output))
        # What is changed while it is read was not in what is built of it.
        self._sources = self._digests({path for step in self._steps for path in step.inputs} - self._outputs)
        self._began = time.time_ns()

    def keep(self) -> None:
        """Attest all that ninja has made since settle()."""
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
        def discard(refusal: Refusal) -> bool:
            return gate.discard(refusal, Kind.NATIVE_CODE, path, self._directory)

        try:
            is_good = gate.settled(lambda: self._judge(step), discard)
        except FileNotFoundError:
            return
        if not is_good and os.path.lexists(path):
            raise Immovable(errno.EBUSY, "it is refused, and replaced as often as it is moved away", path)

    def _judge(self, step: _Step) -> Refusal | None:
        """None for what may stay: attested, or else noted as private. Raises OSError, if it is not there."""
        path = self._path(step.output)
        status = filesystem.retried(lambda: filesystem.lstat(path), filesystem.READING)
        try:
            opening.check_regular(status)
            digest = opening.digest_regular(path, opening.check_regular, flags=os.O_NOFOLLOW)
            refusal = self._judge_content(step, path, digest)
        except opening.UnusableEntry as unusable:
            return gate.of_unusable(unusable)
        except Unreadable as error:  # there is no other place to build in, and ninja builds only what is not there
            refusal = Refusal(Reason.UNREADABLE, error.evidence)
        return None if refusal is None else refusal._replace(found=status)

    def _judge_content(self, step: _Step, path: str, digest: bytes) -> Refusal | None:
        name = self._name(step)
        record = manifests.stored(path, self._directory, Kind.NATIVE_CODE, name=name)
        verdict, stated = manifests.verify(record, path, Kind.NATIVE_CODE, name=name)
        if verdict.reason is None:
            foreign = trust.foreign(verdict, Kind.NATIVE_CODE)
            if foreign is not None:
                return foreign
        elif path in _built:
            stated = dict(_built[path])
        elif verdict.reason in trust.UNATTESTED and gate.is_private(path):
            stated = manifests.unverified(record)
            if stated and not self._is_of_now(step, stated.get("inputs")):
                return _OUTDATED
            refusal = gate.contradiction(record, Kind.NATIVE_CODE, name, digest)
            if refusal is not None:
                return refusal
            self._private[step.output] = digest
            gate.expect_digest(path, digest)
            return None
        else:
            return gate.refused(verdict, verdict.reason)
        if not self._is_of_now(step, stated.get("inputs")):
            return _OUTDATED
        if stated["sha256"] != digest.hex():
            return Refusal(Reason.DAMAGED, "its digest is not the one that was sealed")
        gate.expect_digest(path, digest)
        return None

    def _is_of_now(self, step: _Step, inputs: object) -> bool:
        if not isinstance(inputs, dict):
            return False
        headers = _unpacked(inputs.get("headers"))
        return headers is not None and inputs.get("sha256") == self._inputs(step, headers)

    def _inputs(self, step: _Step, headers: Iterable[str]) -> str:
        """What a file is built of, in short."""
        paths = sorted({*step.inputs, *headers})
        known = {path: self._sources[path] for path in paths if path in self._sources}
        known |= self._digests(set(paths) - set(known))
        digest = hashlib.sha256(step.how)
        for path in paths:
            digest.update(b"\0".join([b"", os.fsencode(path), known[path]]))
        return digest.hexdigest()

    def _digests(self, paths: set[str]) -> dict[str, bytes]:
        """Empty for what is not there, or no file."""
        ordered = sorted(paths)
        read = parallel.each(self._digest, ordered) if len(ordered) > _MANY else map(self._digest, ordered)
        return dict(zip(ordered, read, strict=True))

    def _digest(self, path: str) -> bytes:
        try:
            return opening.digest_regular(self._path(path), _check_file)
        except OSError:
            return b""

    def _is_as_it_was(self, step: _Step) -> bool:
        """Whether ninja has left it, since it was attested; or since it was found to be private, and is not sealed."""
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
        # What was built of something that cannot be told, or that was changed meanwhile, is built anew next time.
        inputs = self._inputs(step, told)
        if not is_known or self._has_changed({*step.inputs, *told}):
            inputs = ""
        also = {"inputs": {"sha256": inputs, "headers": _packed(told)}}
        gate.keep(path, self._directory, also=also, name=self._name(step))
        digest = opening.digest_regular(path, opening.check_regular, flags=os.O_NOFOLLOW)
        _built[path] = {"sha256": digest.hex(), **also}

    def _has_changed(self, paths: set[str]) -> bool:
        """Whether one of them is none, or another, since ninja was started."""
        return any(self._is_changed(path) for path in paths - self._outputs)

    def _is_changed(self, path: str) -> bool:
        if path in self._sources:
            return self._sources[path] == b"" or self._digest(path) != self._sources[path]
        try:
            return os.stat(self._path(path)).st_ctime_ns >= self._began
        except OSError:
            return True

    def _headers(self) -> dict[str, list[str]]:
        """What the compiler has read for each of the files that it tells that of, as ninja has noted it."""
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
    """The files that a build.ninja of torch's makes, each after those that it is made of."""
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
    """Sources and headers are of any owner, and may be links."""
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a file")


def _packed(headers: list[str]) -> str:
    """Those of CUDA are some thousand."""
    return base64.b64encode(zlib.compress(os.fsencode("\n".join(headers)))).decode()


def _unpacked(packed: object) -> list[str] | None:
    try:
        return os.fsdecode(zlib.decompress(base64.b64decode(str(packed), validate=True))).splitlines()
    except (ValueError, zlib.error):
        return None
