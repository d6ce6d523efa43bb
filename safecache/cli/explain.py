"""``safecache explain``: why lookups missed, from the key records, the journal and vLLM's own factor files."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Iterator
from typing import Any

from safecache.cli.arguments import DIRECTORY_HELP, add_json
from safecache.cli.view import View
from safecache.explain import explanations, key_records
from safecache.explain.explanations import Explanation
from safecache.explain.key_records import KeyRecord
from safecache.history import run_summary
from safecache.history.run_summary import LABELS, Line, Shared
from safecache.places import layout
from safecache.ports import Outcome
from safecache.reporting.kinds import Kind, Reason
from safecache.settings import config, timestamps
from safecache.tiers import levels

__all__ = ["add", "causes", "run"]


def add(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    parser.add_argument(
        "what", nargs="?", metavar="NAME|KEY", help="of a function or kernel, or of a key: a part will do"
    )
    parser.add_argument("--dir", dest="directories", action="append", metavar="DIR", help=DIRECTORY_HELP)
    parser.add_argument("--run", metavar="ID", help="the misses of this run alone, as the journal names it")
    parser.add_argument("--last", type=int, default=20, metavar="N", help="how many misses, the last ones (default 20)")
    add_json(parser)


def run(arguments: argparse.Namespace) -> View:
    """Explain the misses, the latest first; 1 if there is none. Raises OSError."""
    environ = config.child_environment()
    shared = levels.shared_cache(environ)
    roots = arguments.directories or levels.existing_caches(environ)
    if shared is not None and not arguments.directories and os.path.isdir(shared):
        roots = [*roots, shared]
    places = arguments.directories or [*roots, layout.vllm_cache_dir(environ)]
    for root in roots:
        os.scandir(root).close()
    roots = [*roots, *(cache for place in places for cache in layout.vllm_caches(place))]
    found = list(_of_caches(roots, arguments.what or "", arguments.run))
    found = sorted(found, key=lambda row: str(row["time"]), reverse=True)[: arguments.last]
    factors = [] if arguments.what or arguments.run else [row for place in places for row in _of_vllm(place)]
    lines = [f"{row['time']} {row['text']}" for row in found]
    lines += [f"vLLM {row['directory']}: {row['text']} (against {row['against']})" for row in factors]
    return View({"misses": found, "vllm": factors}, lines or ["nothing is recorded of misses here"], int(not lines))


def causes(roots: Iterable[str]) -> dict[str, str]:
    """How keys that missed differ from the nearest ones, by key, as far as that is recorded."""
    levels.shared_cache(config.child_environment())
    rows = _of_caches(roots, "", None)
    return {row["key"]: row["cause"] for row in rows if row["reason"] == Reason.KEY_DIFFERS.value}


def _of_caches(roots: Iterable[str], what: str, of_run: str | None) -> Iterator[dict[str, Any]]:
    """Of these and of Triton's in them; a record that two levels have once."""
    told: set[tuple[Kind, str]] = set()
    for root in roots:
        for cache in layout.triton_caches(root):
            yield from _of_cache(cache, what, of_run, told)


def _of_cache(root: str, what: str, of_run: str | None, told: set[tuple[Kind, str]]) -> Iterator[dict[str, Any]]:
    """By the journal, where there is one; what it does not have, by the records alone, if they are not ``told``."""
    records = {(record.kind, record.key): record for record in key_records.every(root)}
    lines = run_summary.read(root)
    shared = run_summary.find_shared(lines)
    for line in reversed(lines):
        if of_run not in (None, line.run) or not (what in line.name or line.key.startswith(what)):
            continue
        kind, outcome, reason = LABELS.get(line.label, (None, None, None))
        if kind is not None and outcome is Outcome.MISS and reason is not None:
            told.add((kind, line.key))
            record = records.pop((kind, line.key), None)
            explanation = explanations.explain(record, root, saved=True) if record else None
            yield _of_miss(line, kind, reason, explanation, shared.get((line.key, line.time)))
    if of_run is None:
        for record in (record for key, record in records.items() if key not in told):
            if what in record.name or record.key.startswith(what):
                yield _row(record, explanations.explain(record, root, saved=True))
        told.update(records)


def _row(record: KeyRecord, explanation: Explanation) -> dict[str, Any]:
    nearest = explanation.nearest
    return {
        "layer": record.kind.word,
        "key": record.key,
        "name": record.name,
        "time": timestamps.write(record.made),
        "reason": "refused" if explanation.refused else explanation.absence.value,
        "cause": explanation.cause,
        "text": str(explanation),
        "nearest": nearest and {"key": nearest.key, "name": nearest.name, "time": timestamps.write(nearest.made)},
        "differences": [difference._asdict() for difference in explanation.differences],
    }


def _of_miss(
    line: Line, kind: Kind, reason: Reason, explanation: Explanation | None, shared: Shared | None
) -> dict[str, Any]:
    """As the journal has it; with the differences where the key is what differs, and who waited for the compile."""
    said = f"{reason.value} {line.detail}".strip()
    stated: dict[str, Any] = {
        "layer": kind.word,
        "key": line.key,
        "name": line.name,
        "run": line.run,
        "reason": reason.value,
    }
    stated |= {"time": timestamps.write(line.time), "host": line.host, "pid": line.pid}
    stated |= {"shared": shared and shared.as_json()}
    waits = f"; {shared}" if shared is not None else ""
    if explanation is None:
        text = f"{kind.word} {line.name or line.key}: {said}{waits}"
        return {**stated, "cause": said, "text": text, "nearest": None, "differences": []}
    row = _row(explanation.record, explanation)
    return {**row, **stated, "text": f"{row['text']} [{said}]{waits}"}


def _of_vllm(root: str) -> Iterator[dict[str, Any]]:
    """Each of vLLM's keys, compared with the nearest earlier one."""
    found = explanations.find_factors(root)
    for number, after in enumerate(found, 1):
        before = explanations.nearest(after, found[number:])
        if before is not None:
            differences = explanations.compare_factors(before, after)
            yield {
                "directory": after.directory,
                "against": before.directory,
                "differences": [difference._asdict() for difference in differences],
                "text": "; ".join(map(str, differences)) or "all factors are the same",
            }
