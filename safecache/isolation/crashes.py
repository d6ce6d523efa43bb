"""Handling of crashes: they are confirmed, reported, raised, and remembered under Triton's hash of the kernel."""

from __future__ import annotations

import errno
import functools
import importlib
import importlib.metadata
import itertools
import json
import os
import platform
import re
import secrets
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from safecache._version import __version__
from safecache.entries import loading
from safecache.errors import TritonCompileCrash
from safecache.fs import folders, opening
from safecache.fs.folders import Folder
from safecache.isolation import client
from safecache.isolation.client import Limits, Outcome, Request
from safecache.isolation.protocol import STAGE_FILE, STAGES, TEMPORARY
from safecache.places import layout, metadata
from safecache.reporting import events, report
from safecache.reporting.kinds import Kind, Reason
from safecache.reporting.report import Refusal
from safecache.session import Part, inherit
from safecache.settings import config, units
from safecache.settings.units import write_size
from safecache.signing import keyring, provenance, seal, trust
from safecache.store import entry_files, groups

__all__ = [
    "Crash",
    "Note",
    "confirm_crash",
    "diagnose_crash",
    "find",
    "forget",
    "iter_notes",
    "list_hashes",
    "list_reports",
    "make_crash",
    "remember",
    "report_skip",
    "write_report",
]

_HASH = re.compile(r"[0-9a-f]{64}")
_DAY = 86400.0
# Seconds. A compile is tried again after a repair, such as of the driver, that does not change the hash.
_LASTS, _LIMIT_LASTS = 30 * _DAY, _DAY
_REMEDY = "The kernel is compiled again."
_REMEDIES = {
    "timeout": "If it needs the time, set a timeout: SAFECACHE_ISOLATE=1,timeout=SECONDS.",
    "memory": "If it needs the memory, set a limit: SAFECACHE_ISOLATE=1,memory=SIZE.",
}

# MLIR catches a SIGABRT or SIGSEGV inside a pass; the error itself says only this.
_PASS_FAILED = "PassManager::run failed"
_SIGNAL_SHOWN = re.compile(
    r"Assertion `.*' failed|LLVM ERROR:|UNREACHABLE executed|A signal was caught|terminate called|Stack dump:",
    re.DOTALL,
)
_BY_OTHERS = (signal.SIGKILL, signal.SIGTERM)

# This process's notes by root and hash: with a cache that cannot be written, it would wait for each timeout again.
_known: Part[dict[tuple[str, str], Note]] = Part(dict, inherit)


class Crash(NamedTuple):
    """``number``: the signal or exit status; for a timeout or memory, the limit in seconds or bytes."""

    how: str
    number: int
    stage: str

    @property
    def is_of_limit(self) -> bool:
        """Whether it depends on a limit and the machine's load, rather than on the kernel alone."""
        return self.how in ("timeout", "memory")

    @property
    def is_by_others(self) -> bool:
        """Whether another process or the OOM killer killed it: that says nothing about the Triton kernel."""
        return self.how == "signal" and self.number in _BY_OTHERS

    @property
    def is_of_kernel(self) -> bool:
        """Whether only the Triton kernel can have caused it."""
        return not self.is_of_limit and not self.is_by_others

    @property
    def words(self) -> str:
        """A description for a person."""
        if self.how == "timeout":
            return f"it took more than {self.number} s"
        if self.how == "memory":
            return f"it took more than {write_size(self.number)} of memory"
        if self.how == "exit":
            return f"the process ended with exit status {self.number}"
        if self.how == "recovered":
            return "MLIR caught a signal in a pass"
        by = ", sent by somebody else, perhaps because memory ran out" if self.is_by_others else ""
        is_named = self.number in set(signal.Signals)
        return f"{signal.Signals(self.number).name if is_named else f'signal {self.number}'}{by}"


def make_crash(message: str, attributes: Mapping[str, Any]) -> TritonCompileCrash:
    """The error to raise; if Triton is installed, one that its autotuner skips."""
    return _make_crash_type()(message, **attributes)


@functools.cache
def _make_crash_type() -> type[TritonCompileCrash]:
    try:
        triton = importlib.import_module("triton.runtime.errors")
        bases = (TritonCompileCrash, triton.PTXASError, triton.OutOfResources)
    except (ImportError, AttributeError):
        return TritonCompileCrash

    def reduce(self: TritonCompileCrash) -> tuple[Any, ...]:
        names = ("how", "signal", "stage", "kernel", "config", "report")
        return make_crash, (str(self), {name: getattr(self, name) for name in names})

    # What handlers of the base classes print.
    members = {"error_message": property(str), "required": 0, "limit": 0, "name": "Triton's compiler"}
    members |= {
        "__reduce__": reduce,
        "__doc__": TritonCompileCrash.__doc__,
        "__module__": TritonCompileCrash.__module__,
    }
    return type(TritonCompileCrash.__name__, bases, members)


class Note(NamedTuple):
    """A crash; ``report``: its directory, None if not written; ``moment``: when, in seconds since the epoch."""

    crash: Crash
    kernel: str
    config: dict[str, Any]
    report: str | None
    moment: float

    def is_valid(self, limits: Limits, now: float) -> bool:
        """Whether at ``now``, in seconds since the epoch, a compile with these limits would crash too."""
        if now - self.moment > (_LIMIT_LASTS if self.crash.is_of_limit else _LASTS):
            return False
        return bool(limits._asdict().get(self.crash.how, 0) <= self.crash.number)


def remember(root: str, hash: str, note: Note) -> None:
    """Have this process, and all that trust its signing key, skip this compile. A failed write is reported.

    A crash caused by another process is not remembered.
    """
    if note.crash.is_by_others:
        return
    _known.now[root, hash] = note
    key = keyring.current().signing
    if key is None:
        return
    stated = json.dumps(note._asdict() | {"crash": note.crash._asdict()}).encode()
    namespace = config.current().namespace
    sealed = seal.attach(stated, Kind.KNOWN_BAD, hash, key, provenance.make_statement(Kind.KNOWN_BAD), namespace)
    try:
        entry_files.publish(_make_path(root, hash), sealed, root)
    except OSError as error:
        action = f"write the note of a crash {_make_path(root, hash)}"
        report.fail_write(action, error, "Only this process skips that configuration.", root, "TRITON_CACHE_DIR")


def find(root: str, hash: str, limits: Limits) -> Note | None:
    """The note of this hash that holds for these limits, or None. A refused note is reported."""
    note = _known.now.get((root, hash)) or _read_note(root, hash)
    if note is None or not note.is_valid(limits, time.time()):
        return None
    _known.now[root, hash] = note
    return note


def forget(root: str, hash: str) -> bool:
    """Remove the crash note of the kernel ``hash``, to recompile it; return whether there was one. Raises OSError."""
    known = _known.now.pop((root, hash), None) is not None
    try:
        with folders.open_parent(root, _make_path(root, hash)) as (folder, name):
            folder.unlink(name)
    except FileNotFoundError:
        return known
    return True


def list_hashes(root: str) -> list[str]:
    """Return the hashes of kernels with a crash note in the cache ``root``, valid or not. Raises OSError."""
    return [name for name in layout.list_entries(os.path.dirname(_make_path(root, ""))) if _HASH.fullmatch(name)]


def iter_notes(root: str) -> Iterator[tuple[str, Note]]:
    """Yield hash and note of each crash that still applies at its own limits. Reports refused notes. Raises OSError."""
    for hash in list_hashes(root):
        note = _read_note(root, hash)
        if note is not None and note.is_valid(Limits(note.crash.number, note.crash.number), time.time()):
            yield hash, note


def _make_path(root: str, hash: str) -> str:
    return metadata.make_path(root, metadata.KNOWN_BAD, hash)


def _read_note(root: str, hash: str) -> Note | None:
    path = _make_path(root, hash)
    content = loading.read_unverified(Kind.KNOWN_BAD, path)
    if content is None:
        return None
    found = trust.examine(content, Kind.KNOWN_BAD, hash, None)
    if not isinstance(found, Refusal):
        with suppress(ValueError, TypeError, KeyError, RecursionError):
            return _decode_note(json.loads(seal.strip_unverified(content)))
        found = Refusal(Reason.UNKNOWN_FORMAT, "this version does not know its format")
    report.refuse(found._replace(remedy=""), Kind.KNOWN_BAD, path, _REMEDY)
    return None


def _decode_note(stated: Any) -> Note:
    """Raises ValueError, TypeError and KeyError for a note that this version would not write, whoever sealed it."""
    note = Note(**stated | {"crash": Crash(**stated["crash"])})
    texts = (note.crash.how, note.crash.stage, note.kernel, note.report or "")
    if not all(isinstance(text, str) for text in texts) or not isinstance(note.config, dict):
        raise TypeError("a field of the note has another type")
    units.check_time(note.moment)
    if type(note.crash.number) is not int:
        raise TypeError("the number of a crash is none")
    return note


def diagnose_crash(outcome: Outcome, directory: str) -> Crash | None:
    """The crash that a compile ended with; None if it ended well, or with an error of the kernel's author.

    ``directory``: the job's.
    """
    stage = _read_unverified(os.path.join(directory, STAGE_FILE)).decode("ascii", "replace")
    if stage not in STAGES:
        stage = "source"  # it had begun none
    if outcome.ending is not None:
        return Crash(*outcome.ending, stage)
    error = (outcome.reply or {}).get("error")
    if error is None or _PASS_FAILED not in error["message"] or not _SIGNAL_SHOWN.search(outcome.stderr):
        return None
    return Crash("recovered", 0, stage)


def report_skip(hash: str, note: Note) -> TritonCompileCrash:
    """The error for a configuration that is known to crash."""
    when = units.write_time(note.moment)
    why = f"on {when} that crashed Triton's compiler, {_describe_crash(note.crash)}"
    remedy = f"Help: after a repair, safecache forget {hash[:16]}"
    events.report(Reason.CRASHED_BEFORE, f"not compiling kernel {_describe_note(note)}", why=why, remedy=remedy)
    return _make_error(f"safecache: not compiling kernel {_describe_note(note)}: {why}. {remedy}", note)


def confirm_crash(
    request: Request, job: dict[str, Any], found: Crash, outcome: Outcome, directory: str
) -> TritonCompileCrash:
    """The error for a new crash, after a second run to confirm it, with its report and its note written."""
    again = _run_again(job, request.limits, directory) if found.is_of_kernel else None
    ended = found._asdict() | {"words": found.words, "seconds": round(outcome.seconds, 3)}
    ended["again"] = None if again is None or again[0] is None else again[0].words
    stderr = outcome.stderr + (f"\n-- and in the second run --\n{again[1].stderr}" if again else "")
    report, problem = None, ""
    try:
        report = write_report(request, ended, found.stage, stderr, directory)
    except OSError as error:
        problem = f"{error.strerror}"
    options = vars(request.options)
    # What an autotuner varies.
    varied = {name: options[name] for name in ("num_warps", "num_stages", "num_ctas") if name in options}
    note = Note(found, request.source.name, varied | _list_constants(request.source), report, time.time())
    remembered = found.is_of_limit or (again is not None and again[0] is not None and again[0].is_of_kernel)
    if remembered:
        remember(request.root, request.hash, note)
    parts = [_REMEDIES.get(found.how, "Other configurations of the kernel may do.")]
    if remembered:
        parts.append(f"It is skipped from now on (to have it compiled again: safecache forget {request.hash[:16]}).")
    parts.append(f"The report is {report}." if report else f"No report could be written: {problem}.")
    remedy = " ".join(parts)
    message, why = f"Triton's compiler crashed on kernel {_describe_note(note)}", _describe_crash(found)
    events.report(Reason.CRASHED, message, why=why, cause=request.source.name, remedy=remedy)
    return _make_error(f"safecache: {message}, {why}. {remedy}", note)


def _run_again(job: dict[str, Any], limits: Limits, directory: str) -> tuple[Crash | None, Outcome] | None:
    """The crash, if any, and outcome of a second run that keeps MLIR's reproducer and all IR; None if it cannot run."""
    second = os.path.join(directory, "again")
    traced = {"TRITON_REPRODUCER_PATH": os.path.join(second, "kernel")}
    source = job["source"]
    knobs = source["knobs"] | {"compilation": source["knobs"]["compilation"] | {"store_binary_only": False}}
    job = {**job, "environment": config.copy_environment() | traced, "source": source | {"knobs": knobs}}
    try:
        os.mkdir(second)
        outcome = client.get_service().run(job, second, timeout=limits.timeout, memory=limits.memory)
    except (OSError, client.ServiceUnavailable):
        return None
    return diagnose_crash(outcome, second), outcome


def _describe_note(note: Note) -> str:
    varied = ", ".join(f"{name}={value}" for name, value in note.config.items())
    return f"{note.kernel} ({varied})" if varied else note.kernel


def _describe_crash(crash: Crash) -> str:
    doing = "read it" if crash.stage == "source" else f"made the {crash.stage}"
    return f"while it {doing}: {crash.words}"


def _make_error(message: str, note: Note) -> TritonCompileCrash:
    attributes = {
        "how": note.crash.how,
        "signal": note.crash.number if note.crash.how == "signal" else None,
        "stage": note.crash.stage,
        "kernel": note.kernel,
        "config": note.config,
        "report": note.report,
    }
    return make_crash(message, attributes)


def _describe_request(request: Request) -> dict[str, Any]:
    """A JSON-able description of the compile: the kernel, its signature, the target, options and versions."""
    source, target = request.source, request.backend.target
    function = getattr(source, "fn", None)
    code = getattr(getattr(function, "fn", None), "__code__", None)
    return {
        "kernel": source.name,
        "file": getattr(source, "path", None) or getattr(code, "co_filename", None),
        "line": getattr(function, "starting_line_number", None),
        "signature": {str(name): _make_plain(kind) for name, kind in source.signature.items()},
        "constants": _list_constants(source),
        "attributes": _make_plain(getattr(source, "attrs", None)),
        "target": {"backend": target.backend, "arch": target.arch, "warp_size": target.warp_size},
        "options": {name: _make_plain(value) for name, value in vars(request.options).items()},
        "versions": {
            "triton": importlib.metadata.version("triton"),
            "python": platform.python_version(),
            "machine": platform.machine(),
            "safecache": __version__,
        },
    }


def _list_constants(source: Any) -> dict[str, Any]:
    names = getattr(getattr(source, "fn", None), "arg_names", ())
    constants = getattr(source, "constants", {})
    return {".".join([names[path[0]], *map(str, path[1:])]): _make_plain(value) for path, value in constants.items()}


def _is_literal(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_literal, value))
    if isinstance(value, dict):
        return all(_is_literal(part) for pair in value.items() for part in pair)
    return value is None or isinstance(value, (bool, int, float, str))


def _make_plain(value: Any) -> Any:
    return value if value is None or isinstance(value, (bool, int, float, str)) else repr(value)


_PROGRAM = '''\
"""Has Triton {triton} crash as it did when it made the {stage} of {kernel}. Needs no GPU: python reproduce.py"""

import os

from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget, Language
from triton.compiler.compiler import make_backend

path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "kernel.source")
target = GPUTarget({backend!r}, {arch!r}, {warp_size!r})
# Not triton.compile(): that takes no IR as it is before the first stage.
backend = make_backend(target)
options = backend.parse_options({options!r})
context = ir.context()
ir.load_dialects(context)
backend.load_dialects(context)
module = ir.parse_mlir_module(path, context)
module.context = context
stages = {{}}
backend.add_stages(stages, options, Language.{language})
metadata = {{"target": target, **options.__dict__}}
for stage, lower in stages.items():
    print(stage, flush=True)
    module = lower(module, metadata)
'''
# Of a compile that was given a file of IR.
_PROGRAM_OF_A_FILE = '''\
"""Has Triton {triton} crash as it did when it made the {stage} of {kernel}. Needs no GPU: python reproduce.py"""

import os
import tempfile

import triton
from triton.backends.compiler import GPUTarget

path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "kernel.{ir}")
os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp()
triton.compile(path, target=GPUTarget({backend!r}, {arch!r}, {warp_size!r}), options={options!r})
'''
_SUMMARY = "report.json"
# Older reports are removed: the latest matter, and a kernel's IR can have megabytes.
_MOST_REPORTS, _MOST_BYTES, _LARGEST_FILE = 100, 64 << 20, 8 << 20
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)
_NAME = re.compile(r"[0-9a-f]{16}(-\d+)?")


def write_report(request: Request, ended: dict[str, Any], stage: str, stderr: str, directory: str) -> str:
    """Report how a compile ended, at which ``stage``; ``directory``: with Triton's files. Raises OSError.

    Returns the report's directory; that of an earlier one, if the same compile has crashed before.
    """
    root = request.root
    parent = metadata.make_path(root, metadata.CRASHES)
    with folders.open_subdirectory(root, (metadata.FOLDER, metadata.CRASHES), make=True) as reports:
        draft = f".{secrets.token_hex(8)}"
        try:
            with reports.enter(draft, make=True) as report:
                for name, content in _iter_files(request, ended, stage, stderr, directory):
                    report.write(name, content[:_LARGEST_FILE])
            place = _publish_report(draft, reports, parent, request.hash)
        finally:
            with suppress(OSError):
                reports.remove(draft)
        _remove_oldest(reports, parent, place)
    return os.path.join(parent, place)


def _publish_report(draft: str, reports: Folder, parent: str, hash: str) -> str:
    for number in itertools.count():
        name = hash[:16] + (f"-{number}" if number else "")
        try:
            reports.rename(draft, reports, name)
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
            if _read_unverified_summary(os.path.join(parent, name)).get("hash") != hash:
                continue
        return name
    raise AssertionError


def _iter_files(
    request: Request, ended: dict[str, Any], stage: str, stderr: str, top: str
) -> Iterator[tuple[str, bytes]]:
    source, described = request.source, _describe_request(request)
    moment = units.write_time(time.time())
    summary = {"hash": request.hash, "time": moment, "ended": ended, "stage": stage} | described
    yield _SUMMARY, json.dumps(summary, indent=1, default=repr).encode()
    yield "stderr.txt", stderr.encode(errors="backslashreplace")
    # As its author wrote it, or as IR.
    text = str(getattr(source, "src", "") or getattr(getattr(source, "fn", None), "src", ""))
    ir = "" if hasattr(source, "fn") else source.ext
    yield f"kernel.{ir or 'txt'}", text.encode(errors="backslashreplace")
    # Without ptxas's temporary files.
    walked = [each for each in os.walk(top) if TEMPORARY not in each[0][len(top) :].split(os.sep)]
    found = sorted(os.path.join(directory, name) for directory, _, names in walked for name in names)
    stages = {os.path.splitext(path)[1][1:]: path for path in found}
    reached = [each for each in STAGES if each in stages or each == ir]
    # What the compile started from, and the input of the stage that crashed.
    for each in {*reached[:1], *reached[-1:]} - {ir}:
        yield f"kernel.{each}", _read_unverified(stages[each])
    # Both runs have the same output of the front end: one copy is enough.
    for name, path in {os.path.basename(path): path for path in found if path.endswith(".mlir")}.items():
        yield name, _read_unverified(path)
    if reached:
        # Those whose repr() evaluates to the same value.
        options = {name: value for name, value in vars(request.options).items() if _is_literal(value)}
        program = (_PROGRAM if reached[0] == "source" else _PROGRAM_OF_A_FILE).format(
            triton=described["versions"]["triton"],
            stage=stage,
            kernel=described["kernel"],
            ir=reached[0],
            options=options,
            language=source.language.name,
            **described["target"],
        )
        yield "reproduce.py", program.encode(errors="backslashreplace")


def _read_unverified(path: str) -> bytes:
    with suppress(OSError, opening.UnusableEntry):
        return opening.read_regular(path, opening.check_regular, flags=os.O_NOFOLLOW, limit=_LARGEST_FILE)
    return b""


def list_reports(root: str) -> dict[str, dict[str, Any]]:
    """Return the unverified summaries of the crash reports in the cache ``root``, by directory. Raises OSError."""
    parent = metadata.make_path(root, metadata.CRASHES)
    paths = [item.path for item in folders.list_items(parent) if not item.name.startswith(".")]
    return {path: summary for path in paths if (summary := _read_unverified_summary(path))}


def _read_unverified_summary(directory: str) -> dict[str, Any]:
    try:
        summary = json.loads(_read_unverified(os.path.join(directory, _SUMMARY)))
    except (ValueError, RecursionError):
        return {}
    return summary if isinstance(summary, dict) else {}


def _remove_oldest(reports: Folder, parent: str, newest: str) -> None:
    """Remove the oldest reports beyond the limits; other users' reports stay, and whatever is only named like one."""
    found = [os.path.join(parent, name) for name in reports.list_names() if _NAME.fullmatch(name) and name != newest]
    size = _measure_size(os.path.join(parent, newest))
    for number, path in enumerate(sorted(found, key=folders.get_mtime, reverse=True), start=2):
        size += _measure_size(path)
        name = os.path.basename(path)
        if (number > _MOST_REPORTS or size > _MOST_BYTES) and str(_read_unverified_summary(path).get("hash"))[
            :16
        ] == name[:16]:
            with suppress(OSError):
                reports.remove(name)


def _measure_size(path: str) -> int:
    return sum(file.size for file in groups.iter_files(path))
