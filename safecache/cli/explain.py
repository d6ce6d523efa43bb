"""``safecache explain``: why lookups missed, from the records of keys, the journal and vLLM's own factor files."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from safecache import (
    cache_directories,
    config,
    explanations,
    journal_lines,
    key_records,
    layout,
    timestamps,
    vllm_factors,
)
from safecache.cli.terminal import printable
from safecache.explanations import Explanation
from safecache.journal_lines import Miss
from safecache.key_records import KeyRecord

__all__ = ["run"]


def run(arguments: argparse.Namespace) -> int:
    """Print the explanations, the last miss first; 1 if there is none. Raises OSError."""
    roots = arguments.directories or cache_directories.existing(config.child_environment())
    found: list[dict[str, Any]] = []
    for root in roots:
        os.scandir(root).close()
        for cache in layout.triton_caches(root):
            found += _of_cache(cache, arguments.what or "", arguments.run)
    found = sorted(found, key=lambda row: str(row["time"]), reverse=True)[: arguments.last]
    factors = [] if arguments.what or arguments.run else [row for root in roots for row in _of_vllm(root)]
    if arguments.json:
        print(json.dumps({"misses": found, "vllm": factors}))
    else:
        _print(found, factors)
    return int(not found and not factors)


def _of_cache(root: str, what: str, of_run: str | None) -> Iterator[dict[str, Any]]:
    """By the journal, where there is one; what it does not have, by the records alone."""
    records = {(record.layer, record.key): record for record in key_records.every(root)}
    told = [miss for miss in journal_lines.misses(root) if of_run in (None, miss.run)]
    for miss in told:
        if what in miss.name or miss.key.startswith(what):
            record = records.pop((miss.layer, miss.key), None)
            yield _of_miss(miss, explanations.explain(record, root, saved=True) if record else None)
    if of_run is None:
        for record in records.values():
            if what in record.name or record.key.startswith(what):
                yield _row(record, explanations.explain(record, root, saved=True))


def _row(record: KeyRecord, explanation: Explanation) -> dict[str, Any]:
    nearest = explanation.nearest
    return {
        "layer": record.layer.value,
        "key": record.key,
        "name": record.name,
        "time": timestamps.write(record.made),
        "reason": "refused" if explanation.refused else explanation.absence.value,
        "cause": explanation.cause,
        "text": str(explanation),
        "nearest": nearest and {"key": nearest.key, "name": nearest.name, "time": timestamps.write(nearest.made)},
        "differences": [difference._asdict() for difference in explanation.differences],
    }


def _of_miss(miss: Miss, explanation: Explanation | None) -> dict[str, Any]:
    """As the journal has it; with the differences where the key is what differs."""
    said = f"{miss.reason} {miss.detail}".strip()
    stated = {"layer": miss.layer.value, "key": miss.key, "name": miss.name, "run": miss.run, "reason": miss.reason}
    stated |= {"time": timestamps.write(miss.time)}
    if explanation is None:
        text = f"{miss.layer.value} {miss.name or miss.key}: {said}"
        return {**stated, "cause": said, "text": text, "nearest": None, "differences": []}
    row = _row(explanation.record, explanation)
    return {**row, **stated, "text": f"{row['text']} [{said}]"}


def _of_vllm(root: str) -> Iterator[dict[str, Any]]:
    """Each directory of vLLM's against the one before it."""
    found = vllm_factors.find(root)
    for after, before in pairwise(found):
        yield {
            "directory": after.directory,
            "against": before.directory,
            "differences": [difference._asdict() for difference in vllm_factors.compare(before, after)],
            "text": "; ".join(map(str, vllm_factors.compare(before, after))) or "all factors are the same",
        }


def _print(found: list[dict[str, Any]], factors: list[dict[str, Any]]) -> None:
    for row in found:
        print(printable(f"{row['time']} {row['text']}"))
    for row in factors:
        print(printable(f"vLLM {row['directory']}: {row['text']} (against {row['against']})"))
    if not found and not factors:
        print("nothing is recorded of misses here")
