"""Crash reports: what is needed to understand a crash of Triton's compiler, and to have it again without safecache.

A report is a directory ``<cache>/.safecache/crashes/<16 digits of Triton's cache hash>``, there whole or not at all. It
holds what the kernel's author wrote or chose, and what the compiler said, but nothing else of the process.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from safecache.files import checks, folders, opening
from safecache.files.folders import Folder
from safecache.isolation import kernel_script, reproducer
from safecache.isolation.crash import STAGE_FILE, STAGES
from safecache.isolation.worker import TEMPORARY
from safecache.settings import units
from safecache.store import groups
from safecache.store.groups import CRASHES_FOLDER

__all__ = ["Facts", "listed", "stage_in", "write"]

_SUMMARY = "report.json"
# The latest tell what is wrong, and a kernel's IR can have megabytes.
_MOST_REPORTS, _MOST_BYTES, _LARGEST_FILE = 100, 64 << 20, 8 << 20
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)
_NAME = re.compile(r"[0-9a-f]{16}(-\d+)?")


class Facts(NamedTuple):
    """``described``: as describe() has it; ``ended``: how, and of what limit; ``source``: the kernel's text.

    ``ir``: the suffix that says in what IR, or "" if it is Python; ``language``: the name of Triton's Language;
    ``options``: for a reproducer, as is ``encoded``, the kernel as it has travelled; ``directory``: with what Triton
    has written.
    """

    hash: str
    described: dict[str, Any]
    ended: dict[str, Any]
    stage: str
    source: str
    ir: str
    language: str
    options: dict[str, Any]
    encoded: dict[str, Any]
    stderr: str
    directory: str


def write(root: str, facts: Facts) -> str:
    """The directory of the report; that of an earlier one, if the same compile has crashed before. Raises OSError."""
    parent = os.path.join(root, ".safecache", CRASHES_FOLDER)
    with folders.opened(root, (".safecache", CRASHES_FOLDER), make=True) as reports:
        draft = f".{secrets.token_hex(8)}"
        try:
            with reports.enter(draft, make=True) as report:
                for name, content in _contents(facts):
                    report.write(name, content[:_LARGEST_FILE])
            place = _publish(draft, reports, parent, facts.hash)
        finally:
            with suppress(OSError):
                reports.remove(draft)
        _remove_oldest(reports, parent, place)
    return os.path.join(parent, place)


def _publish(draft: str, reports: Folder, parent: str, hash: str) -> str:
    for number in itertools.count():
        name = hash[:16] + (f"-{number}" if number else "")
        try:
            reports.rename(draft, reports, name)
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
            if _summary(os.path.join(parent, name)).get("hash") != hash:
                continue
        return name
    raise AssertionError


def _contents(facts: Facts) -> Iterator[tuple[str, bytes]]:
    summary = {"hash": facts.hash, "time": units.write(time.time()), "ended": facts.ended, "stage": facts.stage}
    yield _SUMMARY, json.dumps(summary | facts.described, indent=1, default=repr).encode()
    yield "stderr.txt", facts.stderr.encode(errors="backslashreplace")
    yield f"kernel.{facts.ir or 'txt'}", facts.source.encode(errors="backslashreplace")
    found = _files_in(facts.directory)
    stages = {os.path.splitext(path)[1][1:]: path for path in found}
    reached = [stage for stage in STAGES if stage in stages or stage == facts.ir]
    # What the compile started from, and what the stage that crashed was given.
    for stage in {*reached[:1], *reached[-1:]} - {facts.ir}:
        yield f"kernel.{stage}", _read(stages[stage])
    # What the front end has made is of both runs, and the same.
    for name, path in {os.path.basename(path): path for path in found if path.endswith(".mlir")}.items():
        yield name, _read(path)
    program = _program(facts, f"kernel.{reached[0]}" if reached else None)
    if program is not None:
        yield "reproduce.py", program.encode(errors="backslashreplace")


def _program(facts: Facts, input: str | None) -> str | None:
    if input is None:
        return kernel_script.script(facts.encoded, facts.described, facts.options)
    return reproducer.script(facts.described, facts.options, facts.language, input, facts.stage)


def _files_in(folder: str) -> list[str]:
    """The paths of what a compile has put into its directory; not what ptxas keeps there while it runs."""
    walked = [each for each in os.walk(folder) if TEMPORARY not in each[0][len(folder) :].split(os.sep)]
    return sorted(os.path.join(directory, name) for directory, _, names in walked for name in names)


def stage_in(directory: str) -> str:
    """What a worker was making there when it ended: "source" if not even the kernel's own was read."""
    stage = _read(os.path.join(directory, STAGE_FILE)).decode("ascii", "replace")
    return stage if stage in STAGES else "source"


def _read(path: str) -> bytes:
    with suppress(OSError, checks.UnusableEntry):
        return opening.read_regular(path, checks.check_regular, flags=os.O_NOFOLLOW, limit=_LARGEST_FILE)
    return b""


def listed(root: str) -> dict[str, dict[str, Any]]:
    """The summaries of the reports in the cache by their directories; nobody vouches for what they say."""
    parent = os.path.join(root, ".safecache", CRASHES_FOLDER)
    return {path: summary for path in _directories(parent) if (summary := _summary(path))}


def _directories(parent: str) -> list[str]:
    return [item.path for item in folders.listed(parent) if not item.name.startswith(".")]


def _summary(directory: str) -> dict[str, Any]:
    try:
        summary = json.loads(_read(os.path.join(directory, _SUMMARY)))
    except (ValueError, RecursionError):
        return {}
    return summary if isinstance(summary, dict) else {}


def _remove_oldest(reports: Folder, parent: str, newest: str) -> None:
    """Down to what may lie there; reports of other users stay, and what has the name of one and is none."""
    found = [os.path.join(parent, name) for name in reports.names() if _NAME.fullmatch(name) and name != newest]
    size = _size(os.path.join(parent, newest))
    for number, path in enumerate(sorted(found, key=folders.modified, reverse=True), start=2):
        size += _size(path)
        name = os.path.basename(path)
        if (number > _MOST_REPORTS or size > _MOST_BYTES) and str(_summary(path).get("hash"))[:16] == name[:16]:
            with suppress(OSError):
                reports.remove(name)


def _size(path: str) -> int:
    return sum(file.size for file in groups.below(path))
