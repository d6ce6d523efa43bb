"""Builds of ninja: each object and library is bound to everything it was built from.

That is its command, the content of its sources and of the headers that the compiler reported reading, and what the
caller states besides. Ninja goes by file times alone, which restoring an old build or unpacking a source can set to
anything. It takes any file with a recent time. A build that is attested needs no ninja.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import os
import subprocess
import sys
import sysconfig
import threading
import time
import zlib
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from types import MappingProxyType
from typing import Any

from safecache.built_code import kept_code, ninja_files
from safecache.built_code.ninja_files import Deps, Step
from safecache.errors import EntryRefusedError
from safecache.fs import filesystem, folders, opening, ownership, parallel
from safecache.places import metadata
from safecache.places.layout import CodeFile
from safecache.places.refs import Ref
from safecache.reporting import events, report
from safecache.reporting.kinds import Count, Kind, Reason
from safecache.reporting.report import Refusal
from safecache.session import Part, inherit
from safecache.settings import config, units
from safecache.signing import provenance, trust
from safecache.store import attestations, entry_files, gate, manifests
from safecache.tiers.directory_faults import Immovable, Unreadable

__all__ = ["Build", "attest_while", "find_builds", "plan_build"]

_OUTDATED = Refusal(Reason.OUTDATED, "its sources, or the command that builds it, have changed since it was built")
# For a user's own few headers, threads cost more than they save; nvcc also reports those of CUDA and torch.
_MANY = 64
# Nanoseconds. A file that changed more recently could change again within the same tick of its clock; and a file
# server's clock may differ from ours.
_SETTLED = 60_000_000_000
# Seconds between looks at what ninja has finished.
_INTERVAL = 0.25
_CUDA = "cuda_home = "
# What follows the path of a whole directory; nothing does at the end of a text.
_ENDS = ("", "/", " ", "\n")
_UNSEALED = (metadata.FOLDER, metadata.UNSEALED)
# What compilers and linkers take from the environment, so that no command tells it.
_VARIABLES = (
    *("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH"),
    *("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN"),
)

# The statements about what this process has built, by path: it may have no signing key to seal them with.
_built: Part[dict[str, Mapping[str, Any]]] = Part(dict, inherit)
# The digests of what was read, which extensions share, with what no writer can leave as it was.
_read_by_path: Part[dict[str, tuple[list[int], bytes]]] = Part(dict, inherit)


class Build:
    """Build in ``directory``, judged by what its build.ninja asks for now.

    ``text``: the content of build.ninja. ``also``: what else decides about its outputs, such as the versions of
    packages whose headers no compiler reports. ``tools``: the paths of the compilers, whose content decides as well.
    ``anchors``: the name of each directory in records, so that the same files in another directory are no other build.
    """

    def __init__(
        self,
        directory: str,
        text: str,
        *,
        also: str = "",
        tools: Sequence[str] = (),
        anchors: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._directory = directory
        self._also = also
        self._tools = tools
        # Of two directories that one path lies in, the inner one has to be replaced first.
        self._anchors = dict(sorted(anchors.items(), key=lambda each: len(each[0]), reverse=True))
        self._steps = {step.output: step for step in ninja_files.parse_steps(text, directory)}
        self._parts = {part for step in self._steps.values() for part in step.parts}
        self._sources: dict[str, bytes] = {}
        # The paths of the headers that outputs were built from, by the name in their record, of what is verified.
        self._headers: dict[str, Mapping[str, str]] = {}
        self._began = 0
        # The outputs that are trusted only as private.
        self._unsealed: set[str] = set()

    def is_attested(self) -> bool:
        """Tell whether each of its libraries exists, was built here or sealed by a trusted key, and is up to date.

        The objects that it was made from are of no use then, and may be gone.
        """
        self._read_sources()
        return bool(self._steps) and all(map(self._is_sealed, self._targets))

    @property
    def libraries(self) -> list[str]:
        """Paths of its outputs that nothing else is made from."""
        return [self._join_path(step.output) for step in self._targets]

    @property
    def _targets(self) -> list[Step]:
        return [step for step in self._steps.values() if step.output not in self._parts]

    def is_missing(self) -> bool:
        """Tell whether an output that nothing else is made from does not exist."""
        return not all(map(os.path.lexists, self.libraries))

    def settle(self) -> None:
        """Quarantine every output that ninja must not reuse.

        Raises EntryRefusedError in strict mode, and Unsettled if one cannot be quarantined.
        """
        self._keep_unsealed()
        for step in self._steps.values():
            self._settle_step(step, self._join_path(step.output))
        # Sources may have changed while the outputs were judged: the build reads them as they are now.
        self._read_sources()
        self._began = time.time_ns()

    def attest(self, outputs: Collection[str], reported: Mapping[str, Deps], *, is_over: bool) -> set[str]:
        """Attest those of its outputs that are among ``outputs``, which ninja has finished since settle(); return them.

        While ninja runs, not those whose headers it has not recorded yet. Raises OSError if one cannot be read.
        """
        done = set()
        for step in self._steps.values():
            path = self._join_path(step.output)
            if step.output in outputs and os.path.lexists(path):
                headers = self._find_headers(step, reported.get(step.output))
                if is_over or headers is not None:
                    self._attest_step(step, path, headers)
                    done.add(step.output)
        return done

    def _find_headers(self, step: Step, deps: Deps | None) -> list[str] | None:
        """Return the headers that the output and its parts were built from; None if they are not known, or not yet."""
        own = list[str]()
        if step.tells_headers:
            if deps is None or os.stat(self._join_path(step.output)).st_mtime_ns > deps.moment:
                return None
            own = deps.headers
        if not all(self._is_sealed(self._steps[part]) for part in step.parts):
            return None
        return [*own, *(header for part in step.parts for header in self._headers[part].values())]

    def fetch(self) -> bool:
        """Copy missing libraries from Inductor's cache or a tier below it; return whether all are attested then.

        Raises OSError if one cannot be written, and the reason's error in strict mode.
        """
        return bool(self._steps) and all(self._is_sealed(step) or self._fetch_step(step) for step in self._targets)

    def _fetch_step(self, step: Step) -> bool:
        if os.path.lexists(self._join_path(step.output)):
            return False  # settle() has left it, so ninja may take it

        def find_objection(stated: Mapping[str, Any]) -> Refusal | None:
            return None if self._is_current(step, stated.get("inputs")) else _OUTDATED

        began = time.time_ns()
        found = kept_code.fetch(self._make_kept_ref(step), find_objection)
        if found is None:
            return False
        content, stated = found
        # Elsewhere the same headers are other files.
        inputs = stated["inputs"] | {"moment": began, "stamp": self._get_stamp(step, self._headers[step.output], began)}
        self._write_record(step, {"inputs": inputs}, hashlib.sha256(content).digest())
        entry_files.publish(self._join_path(step.output), content, self._directory, 0o777)
        return self._is_sealed(step)

    def keep(self) -> None:
        """Have Inductor's cache hold the libraries that this process has built, for other directories and hosts.

        What cannot be read or written is reported. Raises CacheWriteError for that in strict mode.
        """
        for step in self._targets:
            self._keep_step(step)

    def _keep_step(self, step: Step) -> None:
        stated = _built.now.get(self._join_path(step.output))
        if stated is not None and stated["inputs"]["sha256"]:
            digest, also = bytes.fromhex(stated["sha256"]), {"inputs": stated["inputs"]}
            kept_code.keep(self._make_kept_ref(step), self._join_path(step.output), digest, also)

    def _make_kept_ref(self, step: Step) -> Ref:
        """Name the copy after all that the output is built from but the headers.

        Nobody knows those before it is built. Its record states them.
        """
        built_of = self._digest_step(step, self._digest_files({*step.sources, *self._tools}))
        environment = config.get_environment()
        # As stock does, an output where it was built stays what it is, however the environment changes.
        told = [f"{name}={self._anchor_text(environment[name])}" for name in _VARIABLES if environment.get(name)]
        return kept_code.locate("\n".join([built_of, *told]), ".so")

    def find_adoptions(self) -> list[tuple[str, Callable[[], bool]]]:
        """Return each output's path with a step that seals the output if ninja takes it for up to date.

        A step returns False if it is sealed already. It raises EntryRefusedError for what others could have written, or
        ninja would build again, and OSError.
        """
        with suppress(FileNotFoundError), folders.open_subdirectory(self._directory, _UNSEALED) as kept:
            names = kept.list_names()
            for step in self._steps.values():
                path = self._join_path(step.output)
                if os.path.basename(path) in names and not self._is_sealed(step):
                    with folders.open_parent(self._directory, path) as (parent, name):
                        kept.rename(name, parent, name)
        reported = ninja_files.read_deps(self._directory)
        return [
            (self._join_path(step.output), partial(self._adopt_step, step, reported)) for step in self._steps.values()
        ]

    def _adopt_step(self, step: Step, reported: Mapping[str, Deps]) -> bool:
        self._read_sources()
        if self._is_sealed(step):
            return False
        path = self._join_path(step.output)
        opening.digest_regular(path, opening.check_private(path), flags=os.O_NOFOLLOW)
        command = ["ninja", "-n", "-f", self._join_path("build.ninja"), step.output]
        said = subprocess.run(command, cwd=self._directory, capture_output=True, text=True, check=False).stdout
        if "no work to do" not in said:
            raise EntryRefusedError(f"{Reason.OUTDATED.value}: ninja would build it again")
        self._began = time.time_ns()
        self.attest({step.output}, reported, is_over=True)
        if not self._is_sealed(step):
            raise EntryRefusedError(f"{Reason.OUTDATED.value}: not all that it was built from is known")
        if step in self._targets:
            self._keep_step(step)
        return True

    def _is_sealed(self, step: Step) -> bool:
        self._unsealed.discard(step.output)
        try:
            return self._judge_step(step) is None and step.output not in self._unsealed
        except OSError:
            return False

    def _keep_unsealed(self) -> None:
        """Move what nobody has sealed, in a directory of this user alone, to where adoptions() finds it."""
        settings = config.current()
        if settings.strict or settings.is_observing or ownership.find_exposure(self._directory) is not None:
            return
        moved = 0
        paths = [self._join_path(step.output) for step in self._steps.values() if self._is_unsealed(step)]
        if paths:
            # What cannot be moved there goes to quarantine.
            with suppress(OSError), folders.open_subdirectory(self._directory, _UNSEALED, make=True) as kept:
                for path in paths:
                    with folders.open_parent(self._directory, path) as (parent, name):
                        parent.rename(name, kept, name)
                        moved += 1
        if moved:
            evidence = f"{units.write_count(moved, 'file has', 'files have')} no sealed record, as stock builds them"
            remedy = f"Help: if only you could write there, stop and run safecache adopt {self._directory} to use them."
            where = f"Rebuilding them; the old ones are kept in {os.path.join(self._directory, *_UNSEALED)}."
            report.refuse(Refusal(Reason.UNSEALED, evidence, remedy), Kind.NATIVE_CODE, self._directory, where)

    def _is_unsealed(self, step: Step) -> bool:
        try:
            refusal = self._judge_step(step)
        except OSError:
            return False
        return refusal is not None and refusal.reason is Reason.UNSEALED

    def _read_sources(self) -> None:
        self._sources = self._digest_files({path for step in self._steps.values() for path in step.sources})

    def _join_path(self, name: str) -> str:
        return os.path.join(self._directory, name)

    def _name_step(self, step: Step) -> str:
        return os.path.relpath(self._join_path(step.output), os.path.dirname(self._directory))

    def _settle_step(self, step: Step, path: str) -> None:
        try:
            is_good = gate.accept_or_quarantine(CodeFile(path, self._directory), lambda: self._judge_step(step))
        except FileNotFoundError:
            return
        if not is_good and os.path.lexists(path):
            raise Immovable(errno.EBUSY, "it is refused, and replaced as often as it is moved away", path)

    def _judge_step(self, step: Step) -> Refusal | None:
        """Return why the output must go; None if attested, or noted as private. Raises OSError if there is none."""
        path = self._join_path(step.output)
        status = filesystem.retry(lambda: filesystem.lstat(path), filesystem.READING)
        try:
            opening.check_regular(status)
            digest = gate.digest_file(path)
            refusal = self._judge_content(step, path, digest)
        except opening.UnusableEntry as unusable:
            return unusable.refusal
        except Unreadable as error:  # there is no other directory to build in, and ninja only builds what is missing
            refusal = Refusal(Reason.UNREADABLE, error.evidence)
        return None if refusal is None else refusal._replace(found=status)

    def _judge_content(self, step: Step, path: str, digest: bytes) -> Refusal | None:
        def find_objection(stated: Mapping[str, Any]) -> Refusal | None:
            return None if self._is_current(step, stated.get("inputs")) else _OUTDATED

        if path in _built.now and _built.now[path]["sha256"] == digest.hex():
            return find_objection(_built.now[path])
        file = CodeFile(path, self._directory, name=self._name_step(step))
        judge = partial(
            gate.judge_content, file, digest, [*manifests.read_unverified_records(file)], objection=find_objection
        )
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

    def _is_current(self, step: Step, inputs: object) -> bool:
        if not isinstance(inputs, dict):
            return False
        headers = self._unpack_headers(inputs.get("headers"))
        if headers is None:
            return False
        self._headers[step.output] = headers
        moment, stamp = inputs.get("moment"), inputs.get("stamp")
        if isinstance(moment, int) and stamp and stamp == self._get_stamp(step, headers, moment):
            return True
        return inputs.get("sha256") == self._digest_inputs(step, headers.values())

    def _digest_inputs(self, step: Step, headers: Iterable[str]) -> str:
        """The SHA-256, in hex, of all that a file is built from."""
        paths = {*step.sources, *headers}
        known = {path: self._sources[path] for path in paths if path in self._sources}
        return self._digest_step(step, known | self._digest_files(paths - set(known)))

    def _get_stamp(self, step: Step, headers: Mapping[str, str], moment: int) -> str:
        """Return a digest like that of _inputs(), which reads no header that had changed long before ``moment``, in ns.

        Of such a header it takes the stat, of which no writer can keep all. "" if a header is missing.
        """
        lines, read, identities = list[str](), set(step.sources), array("Q")
        try:
            for name, path in headers.items():
                identity = filesystem.get_identity(os.stat(path if path.startswith(os.sep) else self._join_path(path)))
                if moment - identity[-1] > _SETTLED:
                    lines.append(name)
                    identities.extend(identity)
                else:
                    read.add(path)
        except (OSError, OverflowError):
            return ""
        text = os.fsencode("\n".join([self._digest_step(step, self._digest_files(read)), *lines, ""]))
        return hashlib.sha256(text + identities.tobytes()).hexdigest()

    def _digest_step(self, step: Step, known: Mapping[str, bytes]) -> str:
        digest = hashlib.sha256(os.fsencode(self._anchor_text(step.how) + self._also))
        for name, path in sorted((self._anchor_text(path), path) for path in known):
            digest.update(b"\0".join([b"", os.fsencode(name), known[path]]))
        return digest.hexdigest()

    def _anchor_text(self, text: str) -> str:
        """The text with the name in place of each directory that has one."""
        for directory, name in self._anchors.items():
            first, *rest = text.split(directory)
            text = first + "".join((name if part[:1] in _ENDS else directory) + part for part in rest)
        return text

    def _digest_files(self, paths: set[str]) -> dict[str, bytes]:
        """Digests by path; empty for a path that is missing or not a regular file."""
        ordered = sorted(paths)
        read = (
            parallel.map_in_threads(self._digest_file, ordered)
            if len(ordered) > _MANY
            else map(self._digest_file, ordered)
        )
        return dict(zip(ordered, read, strict=True))

    def _digest_file(self, name: str) -> bytes:
        path = self._join_path(name)
        try:
            identity = filesystem.get_identity(os.stat(path))
            before, digest = _read_by_path.now.get(path, (None, b""))
            if before != identity:
                digest = opening.digest_regular(path, ninja_files.check_file)
        except OSError:
            return b""
        if time.time_ns() - identity[-1] > _SETTLED:
            _read_by_path.now[path] = identity, digest
        return digest

    def _attest_step(self, step: Step, path: str, headers: list[str] | None) -> None:
        told = {self._anchor_text(header): header for header in [*self._tools, *(headers or [])]}
        inputs: dict[str, object] = {"sha256": "", "headers": _pack_headers(told)}
        # An output whose inputs are unknown, or changed meanwhile, is built again next time.
        if headers is not None and not any(map(self._is_changed, {*step.sources, *told.values()})):
            inputs["sha256"] = self._digest_inputs(step, told.values())
            inputs |= {"moment": self._began, "stamp": self._get_stamp(step, told, self._began)}
        digest = gate.digest_file(path)
        self._write_record(step, {"inputs": inputs}, digest)

    def _write_record(self, step: Step, also: Mapping[str, Any], digest: bytes) -> None:
        file = CodeFile(self._join_path(step.output), self._directory, name=self._name_step(step))
        gate.attest_file(file, also=also, digest=digest)
        _built.now[file.path] = {"sha256": digest.hex(), **also}

    def _is_changed(self, path: str) -> bool:
        """Tell whether the file is missing, or has changed since ninja was started."""
        if path in self._sources:
            return self._sources[path] == b"" or self._digest_file(path) != self._sources[path]
        try:
            return os.stat(self._join_path(path)).st_ctime_ns >= self._began
        except OSError:
            return True

    def _unpack_headers(self, packed: object) -> dict[str, str] | None:
        """The paths of headers, by the names that their record has for them; None if they cannot be read."""
        try:
            names = "\n" + os.fsdecode(zlib.decompress(base64.b64decode(str(packed), validate=True)))
        except (ValueError, zlib.error):
            return None
        paths = names
        # All of them at once: this is half of what a warm start takes for CUDA's.
        for directory, name in self._anchors.items():
            paths = paths.replace(f"\n{name}/", f"\n{directory}/")
        return {name: path for name, path in zip(names.split("\n"), paths.split("\n"), strict=True) if name}


@contextmanager
def attest_while(builds: Sequence[Build], directory: str) -> Iterator[None]:
    """Attest what ninja finishes in ``directory`` while it runs in this block, whatever ends it.

    So after a kill or on a full disk the next start goes on from there. Raises OSError if an output cannot be read.
    """
    known, ended = ninja_files.read_log(directory), threading.Event()

    def attest(*, is_over: bool) -> None:
        lines = {line.split("\t")[3]: line for line in ninja_files.read_log(directory) - known}
        reported = ninja_files.read_deps(directory) if lines else {}
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


def find_builds(root: str) -> Iterator[Build]:
    """Yield the builds below ``root``, by their build.ninja, but not SGLang's published ones. Nothing is verified.

    Raises OSError, and UnusableEntry for a build.ninja that others could have written.
    """
    for directory, _, names in os.walk(root):
        if "build.ninja" in names and kept_code.HEADERS not in names:
            path = os.path.join(directory, "build.ninja")
            yield plan_build(path, os.fsdecode(opening.read_regular(path, opening.check_private(path))))


def plan_build(path: str, text: str) -> Build:
    """Return the Build for ``text``, the build.ninja at ``path``, whether that file exists yet or not."""
    directory = os.path.realpath(os.path.dirname(path))
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
    also = [f"{name} {provenance.find_version(name)}" for name in ("torch", "flashinfer-python", "apache-tvm-ffi")]
    tools = ninja_files.find_compilers(text)
    return Build(directory, text, also="\n".join([sys.version, *also]), tools=tools, anchors=anchors)


def _pack_headers(names: Iterable[str]) -> str:
    """The names of headers, compressed: CUDA has some thousand."""
    return base64.b64encode(zlib.compress(os.fsencode("\n".join(names)))).decode()
