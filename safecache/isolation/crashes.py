"""What becomes of a crash: it is confirmed, reported, remembered, and raised as an error that autotuners skip."""

from __future__ import annotations

import os
import time
from typing import Any

from safecache.errors import TritonCompileCrash
from safecache.isolation import client, known_bad, reports
from safecache.isolation.attempts import Request
from safecache.isolation.client import Outcome
from safecache.isolation.crash import Crash, diagnose, make
from safecache.isolation.known_bad import Note
from safecache.isolation.limits import Limits
from safecache.reporting import events
from safecache.reporting.kinds import Reason
from safecache.settings import config, timestamps

__all__ = ["confirmed", "diagnosed", "skipped"]


def diagnosed(outcome: Outcome, directory: str) -> Crash | None:
    """The crash, if the compile ended with one. ``directory``: where the worker has compiled."""
    error = (outcome.reply or {}).get("error")
    return diagnose(outcome.ending, error, outcome.stderr, reports.stage_in(directory))


def skipped(hash: str, note: Note) -> TritonCompileCrash:
    """The error for a configuration that is known to crash."""
    when = timestamps.write(note.moment)
    text = f"kernel {_words(note)} is not compiled: on {when} that crashed Triton's compiler"
    remedy = f"To have it compiled again: safecache forget {hash[:16]}."
    message = f"{text}, {_of(note.crash)}."
    events.report(Reason.CRASHED_BEFORE, message, remedy=remedy)
    return _error(f"safecache: {message} {remedy}", note)


def confirmed(
    request: Request, root: str, job: dict[str, Any], limits: Limits, found: Crash, outcome: Outcome, directory: str
) -> TritonCompileCrash:
    """The error for a crash that was just met, after a second run, with its report written and its note kept."""
    again = _run_again(job, limits, directory) if found.is_of_kernel else None
    report, problem = _report(request, root, job, found, outcome, again, directory)
    varied = reports.config_of(request.source, request.options)
    note = Note(found, request.source.name, varied, report, time.time())
    remembered = found.is_of_limit or (again is not None and again[0] is not None and again[0].is_of_kernel)
    if remembered:
        known_bad.remember(root, request.hash, note)
    remedy = _remedy(request.hash, note, remembered=remembered, problem=problem)
    message = f"Triton's compiler crashed on kernel {_words(note)}, {_of(found)}."
    events.report(Reason.CRASHED, message, cause=request.source.name, remedy=remedy)
    return _error(f"safecache: {message} {remedy}", note)


def _run_again(job: dict[str, Any], limits: Limits, directory: str) -> tuple[Crash | None, Outcome] | None:
    """Whether it crashes again, where MLIR leaves a reproducer, and Triton all IR; None if it could not be run."""
    second = os.path.join(directory, "again")
    traced = {"TRITON_REPRODUCER_PATH": os.path.join(second, "kernel")}
    source = job["source"]
    knobs = source["knobs"] | {"compilation": source["knobs"]["compilation"] | {"store_binary_only": False}}
    job = {**job, "environment": config.child_environment() | traced, "source": source | {"knobs": knobs}}
    try:
        os.mkdir(second)
        outcome = client.current().run(job, second, timeout=limits.timeout, memory=limits.memory)
    except (OSError, client.ServiceUnavailable):
        return None
    return diagnosed(outcome, second), outcome


def _report(
    request: Request,
    root: str,
    job: dict[str, Any],
    found: Crash,
    outcome: Outcome,
    again: tuple[Crash | None, Outcome] | None,
    directory: str,
) -> tuple[str | None, str]:
    """Where the report is, and why it is not."""
    ended = found._asdict() | {"words": found.words, "seconds": round(outcome.seconds, 3)}
    ended["again"] = None if again is None or again[0] is None else again[0].words
    stderr = outcome.stderr + (f"\n-- and in the second run --\n{again[1].stderr}" if again else "")
    facts = reports.Facts(
        hash=request.hash,
        described=reports.describe(request.source, request.backend.target, request.options),
        ended=ended,
        stage=found.stage,
        source=reports.source_of(request.source),
        ir="" if hasattr(request.source, "fn") else request.source.ext,
        language=request.source.language.name,
        options=reports.options_of(request.options),
        encoded=job["source"],
        stderr=stderr,
        directory=directory,
    )
    try:
        return reports.write(root, facts), ""
    except OSError as error:
        return None, f"{error.strerror}"


def _remedy(hash: str, note: Note, *, remembered: bool, problem: str) -> str:
    parts = ["Other configurations of the kernel may do."]
    if note.crash.how == "timeout":
        parts = ["If it needs the time, set SAFECACHE_COMPILE_TIMEOUT."]
    elif note.crash.how == "memory":
        parts = ["If it needs the memory, set SAFECACHE_COMPILE_MEMORY."]
    if remembered:
        parts.append(f"It is skipped from now on (to have it compiled again: safecache forget {hash[:16]}).")
    parts.append(f"The report is {note.report}." if note.report else f"No report could be written: {problem}.")
    return " ".join(parts)


def _words(note: Note) -> str:
    varied = ", ".join(f"{name}={value}" for name, value in note.config.items())
    return f"{note.kernel} ({varied})" if varied else note.kernel


def _of(crash: Crash) -> str:
    doing = "read it" if crash.stage == "source" else f"made the {crash.stage}"
    return f"while it {doing}: {crash.words}"


def _error(message: str, note: Note) -> TritonCompileCrash:
    attributes = {
        "how": note.crash.how,
        "signal": note.crash.number if note.crash.how == "signal" else None,
        "stage": note.crash.stage,
        "kernel": note.kernel,
        "config": note.config,
        "report": note.report,
    }
    return make(message, attributes)
