"""Crash reports: the data needed to understand a crash of Triton's compiler, and scripts to reproduce it."""

from __future__ import annotations

import errno
import importlib.metadata
import itertools
import json
import os
import platform
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from safecache._version import __version__
from safecache.files import folders, opening
from safecache.files.folders import Folder
from safecache.isolation.client import Request
from safecache.isolation.protocol import STAGE_FILE, STAGES, TEMPORARY
from safecache.places import ours
from safecache.settings import timestamps
from safecache.store import groups

__all__ = [
    "config_of",
    "listed",
    "stage_in",
    "write",
]


def config_of(request: Request) -> dict[str, Any]:
    """The options and constants that an autotuner varies, by name."""
    options = vars(request.options)
    named = {name: options[name] for name in ("num_warps", "num_stages", "num_ctas") if name in options}
    return named | _constants(request.source)


def _describe(request: Request) -> dict[str, Any]:
    """A JSON-able description of the compile: the kernel, its signature, the target, options and versions."""
    source, target = request.source, request.backend.target
    function = getattr(source, "fn", None)
    code = getattr(getattr(function, "fn", None), "__code__", None)
    return {
        "kernel": source.name,
        "file": getattr(source, "path", None) or getattr(code, "co_filename", None),
        "line": getattr(function, "starting_line_number", None),
        "signature": {str(name): _plain(kind) for name, kind in source.signature.items()},
        "constants": _constants(source),
        "attributes": _plain(getattr(source, "attrs", None)),
        "target": {"backend": target.backend, "arch": target.arch, "warp_size": target.warp_size},
        "options": {name: _plain(value) for name, value in vars(request.options).items()},
        "versions": {
            "triton": importlib.metadata.version("triton"),
            "python": platform.python_version(),
            "machine": platform.machine(),
            "safecache": __version__,
        },
    }


def _constants(source: Any) -> dict[str, Any]:
    names = getattr(getattr(source, "fn", None), "arg_names", ())
    constants = getattr(source, "constants", {})
    return {".".join([names[path[0]], *map(str, path[1:])]): _plain(value) for path, value in constants.items()}


def _is_literal(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_literal, value))
    if isinstance(value, dict):
        return all(_is_literal(part) for pair in value.items() for part in pair)
    return value is None or isinstance(value, (bool, int, float, str))


def _plain(value: Any) -> Any:
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
_SUMMARY = "report.json"
# Older reports are removed: the latest matter, and a kernel's IR can have megabytes.
_MOST_REPORTS, _MOST_BYTES, _LARGEST_FILE = 100, 64 << 20, 8 << 20
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)
_NAME = re.compile(r"[0-9a-f]{16}(-\d+)?")


def write(request: Request, ended: dict[str, Any], stage: str, stderr: str, directory: str) -> str:
    """Report how a compile ended, at which ``stage``; ``directory``: with Triton's files. Raises OSError.

    Returns the report's directory; that of an earlier one, if the same compile has crashed before.
    """
    root = request.root
    parent = ours.metadata_path(root, ours.CRASHES)
    with folders.open_subdirectory(root, (ours.FOLDER, ours.CRASHES), make=True) as reports:
        draft = f".{secrets.token_hex(8)}"
        try:
            with reports.enter(draft, make=True) as report:
                for name, content in _contents(request, ended, stage, stderr, directory):
                    report.write(name, content[:_LARGEST_FILE])
            place = _publish(draft, reports, parent, request.hash)
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


def _contents(
    request: Request, ended: dict[str, Any], stage: str, stderr: str, top: str
) -> Iterator[tuple[str, bytes]]:
    source, described = request.source, _describe(request)
    moment = timestamps.write(time.time())
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
        yield f"kernel.{each}", _read(stages[each])
    # Both runs have the same output of the front end: one copy is enough.
    for name, path in {os.path.basename(path): path for path in found if path.endswith(".mlir")}.items():
        yield name, _read(path)
    if "source" in reached:
        # Those whose repr() evaluates to the same value.
        options = {name: value for name, value in vars(request.options).items() if _is_literal(value)}
        program = _PROGRAM.format(
            triton=described["versions"]["triton"],
            stage=stage,
            kernel=described["kernel"],
            options=options,
            language=source.language.name,
            **described["target"],
        )
        yield "reproduce.py", program.encode(errors="backslashreplace")


def stage_in(directory: str) -> str:
    """The stage that a worker had reached in ``directory`` when it ended; "source" if it had begun none."""
    stage = _read(os.path.join(directory, STAGE_FILE)).decode("ascii", "replace")
    return stage if stage in STAGES else "source"


def _read(path: str) -> bytes:
    with suppress(OSError, opening.UnusableEntry):
        return opening.read_regular(path, opening.check_regular, flags=os.O_NOFOLLOW, limit=_LARGEST_FILE)
    return b""


def listed(root: str) -> dict[str, dict[str, Any]]:
    """The summaries of the reports in the cache by their directories; nothing attests what they say."""
    parent = ours.metadata_path(root, ours.CRASHES)
    paths = [item.path for item in folders.listed(parent) if not item.name.startswith(".")]
    return {path: summary for path in paths if (summary := _summary(path))}


def _summary(directory: str) -> dict[str, Any]:
    try:
        summary = json.loads(_read(os.path.join(directory, _SUMMARY)))
    except (ValueError, RecursionError):
        return {}
    return summary if isinstance(summary, dict) else {}


def _remove_oldest(reports: Folder, parent: str, newest: str) -> None:
    """Remove the oldest reports beyond the limits; other users' reports stay, and whatever is only named like one."""
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
