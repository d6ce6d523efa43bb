"""Why a lookup missed, in words: the nearest key of the same function or kernel, and vLLM's own account."""

from __future__ import annotations

import difflib
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from safecache.compiles import BACKWARD
from safecache.explain import (
    CHOSEN,
    ENVIRONMENT,
    GRAPH,
    GRAPH_LINE,
    INPUT,
    KERNEL,
    OPTIONS,
    PLACE,
    SOURCE_LINE,
    key_records,
    parse_fields,
)
from safecache.explain.key_records import Component, KeyRecord
from safecache.fs import folders, opening
from safecache.places import layout, metadata
from safecache.places.refs import Ref
from safecache.reporting.kinds import Kind, Reason
from safecache.settings import units
from safecache.store import quarantine

__all__ = [
    "Difference",
    "Explanation",
    "Factors",
    "compare",
    "compare_factors",
    "explain",
    "find_factors",
    "find_nearest",
    "find_nearest_factors",
    "list_refusals",
]

_ABSENT = "none"
# Differences are sorted in this order. What matches no prefix comes after all of these, just before _SUMMARIES.
_VERSIONS = ("torch", "triton", "cuda", "hip")
_TELLING = (
    ("target", "device"),
    ("env ",),
    ("inductor config ", "functorch config ", "argument of Inductor's", "option "),
    ("source of custom pass", "source of the custom partitioner"),
    ("constexpr ", "type of argument ", INPUT),
    (SOURCE_LINE, "source of ", "global ", GRAPH_LINE),
)
_SUMMARIES = {
    GRAPH: (GRAPH_LINE,),
    "functorch config": ("functorch config ",),
    OPTIONS: ("option ",),
    KERNEL: (SOURCE_LINE, "global ", "source of ", "first line of the kernel"),
}
_LINES = (GRAPH_LINE, SOURCE_LINE)
# Parts whose values depend on the Triton or torch version.
_OF_TORCH = ("inductor config ", "functorch config ", "argument of Inductor's", "arguments of AOTAutograd", "system ")
_OF_TARGET = re.compile(
    r"option (arch|backend_name|warp_size|ptx_version|(allowed|default|deprecated|supported)_\w+|max_num_imprecise\w*"
    r"|matrix_instr_nonkdim|kpack|extern_libs)|options|ptxas|backend"
)
_OF_SETTINGS = ("inductor config ", "functorch config ", "source of custom pass", "torch", INPUT)
# Fields that change as a consequence of another field of the tensor.
_OF_SHAPE = {"shape": ("stride", "memory_format", "storage_bytes"), "stride": ("memory_format",)}
_SHOWN_LINES = 3
_FAR = 1000


class Difference(NamedTuple):
    """Difference between two keys: ``what`` differs, and both values as text."""

    what: str
    before: str
    after: str

    def __str__(self) -> str:
        shown = self.before or self.after
        return f"{self.what}: {self.before or _ABSENT} → {self.after or _ABSENT}" if shown else f"{self.what} changed"


def find_nearest(record: KeyRecord, others: Iterable[KeyRecord]) -> KeyRecord | None:
    """The other record with the fewest differences; among equals the latest. Other processes' records are preferred.

    A process that tunes a kernel makes several keys, which differ only in the configuration.
    """
    candidates = [other for other in others if other.key != record.key]
    before = [other for other in candidates if other.process != record.process]
    return min(before or candidates, key=lambda other: (_measure_distance(other, record), -other.made), default=None)


def _measure_distance(before: KeyRecord, after: KeyRecord) -> float:
    """How many parts differ: of another build all could, and of two sources it counts how much."""
    changed = {name: pair for name, pair in _find_changed(before, after).items() if _is_of_key(name, after.kind)}
    lines = [
        (Counter(_list_digests(before, name)), Counter(_list_digests(after, name)))
        for name in _LINES
        if name in changed
    ]
    shares = sum(((was - now) + (now - was)).total() / (was + now).total() for was, now in lines)
    return len(changed) + shares + _FAR * len(changed.keys() & {*_VERSIONS, "target", "device"})


def compare(before: KeyRecord, after: KeyRecord) -> list[Difference]:
    """The differences of two keys of one kind, without consequences, the most telling first."""
    changed = _find_changed(before, after)
    kept = {name: pair for name, pair in changed.items() if not _is_consequence(name, pair, changed, after.kind)}
    kept = {name: pair for name, pair in kept.items() if _is_of_key(name, after.kind) or _is_decisive(name, kept)}
    found = [said for name, pair in kept.items() if name not in _LINES for said in _compare_parts(name, *pair)]
    found += [difference for name in _LINES if name in kept for difference in _compare_lines(name, before, after)]
    return sorted(found, key=lambda difference: (_rank_part(difference.what), difference.what))


_Pair = tuple[Component | None, Component | None]


def _find_changed(before: KeyRecord, after: KeyRecord) -> dict[str, _Pair]:
    """The parts that differ, by name; for source lines, only whether any differ."""
    was, now = ({c.name: c for c in record.components if c.name not in _LINES} for record in (before, after))
    pairs = {name: (was.get(name), now.get(name)) for name in {**was, **now}}
    changed = {name: pair for name, pair in pairs.items() if len({each and each.digest for each in pair}) > 1}
    for name in _LINES:
        if _list_digests(before, name) != _list_digests(after, name):
            changed[name] = (None, None)
    return changed


def _list_digests(record: KeyRecord, name: str) -> list[str]:
    return [component.digest for component in record.components if component.name == name]


def _is_consequence(name: str, pair: _Pair, changed: Mapping[str, _Pair], kind: Kind) -> bool:
    """Whether this difference only follows from others that changed."""

    def is_changed(*beginnings: str) -> bool:
        return any(other != name and other.startswith(beginnings) for other in changed)

    if name in _SUMMARIES and is_changed(*_SUMMARIES[name]):
        return True
    if kind is Kind.KERNEL:
        return _is_triton_consequence(name, pair, changed)
    if "torch" in changed and name.startswith((*_OF_TORCH, GRAPH)):
        return True
    if name in (GRAPH, GRAPH_LINE):
        if kind is Kind.FX_ENTRY:
            return is_changed(*_OF_SETTINGS)
        # Inputs were added or removed: dynamic sizes are inputs of their own, before the tensors.
        return any(other.startswith(INPUT) and None in both for other, both in changed.items())
    # With another signature the sources of the arguments are others, and with other inputs what is static of them.
    return name in ("arguments of AOTAutograd", "inputs to check") and is_changed(GRAPH_LINE, INPUT)


def _is_triton_consequence(name: str, pair: _Pair, changed: Mapping[str, _Pair]) -> bool:
    if "triton" in changed and (name in ("ptxas", "backend", OPTIONS) or (name.startswith("option ") and None in pair)):
        return True
    if "target" in changed and _OF_TARGET.fullmatch(name):
        return True
    return name.startswith("first line of the kernel") and SOURCE_LINE in changed


def _is_of_key(name: str, kind: Kind) -> bool:
    """Tell whether ``name`` is part of the key: Triton's has some variables, torch's no variables and no notes."""
    return kind is Kind.KERNEL or not name.startswith((ENVIRONMENT, CHOSEN, PLACE))


def _is_decisive(variable: str, changed: Iterable[str]) -> bool:
    """Whether the variable, which is not part of the key, is named after one of the settings that changed."""
    names = [name for name in changed if " config " in name and not name.startswith(CHOSEN)]
    settings = [name.rpartition(" ")[2].rpartition(".")[2].upper() for name in names]
    return any(variable.endswith(setting) for setting in settings)


def _compare_parts(name: str, before: Component | None, after: Component | None) -> Iterator[Difference]:
    before_text, after_text = (component.text if component else "" for component in (before, after))
    was, now = parse_fields(before_text), parse_fields(after_text)
    if not name.startswith(INPUT) or not was or not now:
        yield Difference(name, before_text, after_text)
        return
    changed = [field for field in {**was, **now} if was.get(field) != now.get(field)]
    follow = {field for cause in changed for field in _OF_SHAPE.get(cause, ())}
    for field in changed:
        if field not in follow:
            usual = "False" if "True" in (was.get(field), now.get(field)) else ""
            yield Difference(f"{name}: {field}", was.get(field, usual), now.get(field, usual))


def _compare_lines(name: str, before: KeyRecord, after: KeyRecord) -> Iterator[Difference]:
    """The first places where two sources differ, and how many more there are."""
    was, now = ([c for c in record.components if c.name == name] for record in (before, after))
    matcher = difflib.SequenceMatcher(None, [c.digest for c in was], [c.digest for c in now], autojunk=False)
    places = [code for code in matcher.get_opcodes() if code[0] != "equal"]
    for _, start, end, new_start, new_end in places[:_SHOWN_LINES]:
        texts = (" ⏎ ".join(c.text for c in part[:_SHOWN_LINES]) for part in (was[start:end], now[new_start:new_end]))
        yield Difference(f"{name} {new_start + 1}", *texts)
    if places[_SHOWN_LINES:]:
        yield Difference(f"{name}s in {units.write_count(len(places) - _SHOWN_LINES, 'more place')}", "", "")


def _rank_part(what: str) -> int:
    if what in _VERSIONS:
        return -1
    ranks = (rank for rank, beginnings in enumerate(_TELLING) if what.startswith(beginnings))
    return next(ranks, len(_TELLING) + (what in _SUMMARIES))


class Explanation(NamedTuple):
    """Explanation of one missed lookup.

    ``refused``: why entries of this key were refused. ``nearest``: the key that it was compared with, if any.
    ``remains``: whether there is still a file at the path of the key that missed.
    """

    record: KeyRecord
    absence: Reason
    refused: list[str]
    nearest: KeyRecord | None
    differences: list[Difference]
    remains: bool = False

    @property
    def cause(self) -> str:
        """The cause as a sentence without a full stop."""
        if self.refused:
            return f"its entry was refused: {'; '.join(self.refused)}"
        if self.absence is Reason.EVICTED:
            saved = units.write_time(self.record.first)
            if self.remains:
                return f"the same key was saved on {saved}, and what is there was refused, or its guards failed"
            return f"the same key was saved on {saved}, and its entry is gone: removed, evicted or not readable"
        if self.nearest is None:
            return "nothing was ever saved under this name, and nothing like it"
        if not self.differences:
            return "its key differs from the nearest one in nothing that is recorded"
        return "; ".join(map(str, self.differences))

    def __str__(self) -> str:
        what = "Triton kernel" if self.record.kind is Kind.KERNEL else self.record.kind.noun
        told = f"{what} of {self.record.name}: {self.cause}"
        if self.nearest is None:
            return told
        of = "" if self.nearest.name == self.record.name else f" of {self.nearest.name}, the nearest under another name"
        return f"{told} (against {self.nearest.key[:16]}…{of}, saved on {units.write_time(self.nearest.made)})"


def explain(record: KeyRecord, root: str, *, saved: bool) -> Explanation:
    """Explain why the cache ``root`` had nothing under the key of ``record``.

    ``saved``: True if ``record`` was written by the save after the miss; False if the lookup has only just missed.
    """
    own = record if saved else key_records.recall(Ref(record.kind, record.key, root), record.name)
    before = saved and record.first < record.made
    if own is not None and (before or not saved):
        remains = not saved and bool(key_records.list_names(Ref(record.kind, record.key, root).path))
        return Explanation(own, Reason.EVICTED, list_refusals(record.key, root), None, [], remains)
    others = _select_earlier(key_records.list_same_name(Ref(record.kind, record.key, root), record.name), record, saved)
    absence = Reason.KEY_DIFFERS if others else Reason.NEVER_SEEN
    # Of another name: what a function is called now, that was moved or renamed. Its forward graph says nothing of its
    # backward graph.
    others = others or [
        other
        for other in _select_earlier(key_records.list_records(root, record.kind), record, saved)
        if other.name.endswith(BACKWARD) == record.name.endswith(BACKWARD)
    ]
    nearest = find_nearest(record, others)
    differences = compare(nearest, record) if nearest else []
    return Explanation(record, absence, [], nearest, differences)


def _select_earlier(records: list[KeyRecord], record: KeyRecord, saved: bool) -> list[KeyRecord]:
    return [other for other in records if other.key != record.key and (not saved or other.first <= record.made)]


def list_refusals(key: str, root: str) -> list[str]:
    """Why entries of this key are in quarantine, each reason once, from the notes there; nothing attests them."""
    directory = metadata.make_path(root, metadata.QUARANTINE)
    names = (name for name in key_records.list_names(directory) if name.endswith(".json"))
    notes = (quarantine.read_note(os.path.join(directory, name)) for name in names)
    of_key = (note for note in notes if f"/{key}/" in note.get("from", ""))
    return sorted({f"{note.get('reason', '')} (on {note.get('time', '')})" for note in of_key})


_FILE = "cache_key_factors.json"
_LARGEST = 8 << 20
_DEEPEST = 6


class Factors(NamedTuple):
    """vLLM's factors in one directory, by their paths in the file, each as JSON; and when they were written."""

    directory: str
    made: float
    values: dict[str, str]

    @property
    def prefix(self) -> str:
        """Name of the part of a model: vLLM compiles a draft model beside the model itself."""
        return os.path.basename(self.directory)


def find_factors(root: str) -> list[Factors]:
    """Return vLLM's key factors in ``root`` and below, the latest first, one rank's for each key."""
    found = sorted(
        filter(None, map(_read_unverified, _find_factor_files(root, _DEEPEST))),
        key=lambda factors: (factors.made, factors.directory),
    )
    of_keys = {(os.path.dirname(os.path.dirname(each.directory)), each.prefix): each for each in reversed(found)}
    return sorted(of_keys.values(), key=lambda factors: factors.made, reverse=True)


def find_nearest_factors(after: Factors, others: list[Factors]) -> Factors | None:
    """Return which of ``others``, for the same part of a model, differs least from ``after``; the latest of equals.

    None if there is none for that part.
    """
    candidates = [other for other in others if other.prefix == after.prefix]
    return min(candidates, key=lambda other: (len(_find_changed_factors(other, after)), -other.made), default=None)


def compare_factors(before: Factors, after: Factors) -> list[Difference]:
    """Return the factors that differ, with both values, the least nested names first."""
    names = sorted(_find_changed_factors(before, after), key=lambda name: (name.count("."), name))
    titles = (f"env {name.removeprefix('env.')}" if name.startswith("env.") else name for name in names)
    return [
        Difference(title, _format_factor(name, before), _format_factor(name, after))
        for title, name in zip(titles, names, strict=True)
    ]


def _find_changed_factors(before: Factors, after: Factors) -> set[str]:
    return {name for name, _ in before.values.items() ^ after.values.items()}


def _format_factor(name: str, factors: Factors) -> str:
    stated = factors.values.get(name, "")
    # A setting of vLLM's that is not text, such as a number of tokens or a switch, is no secret, whatever its name.
    is_text = stated.startswith('"') and stated != '""'
    return key_records.mask_setting(name, json.loads(stated)) if is_text else key_records.cap_text(stated)


def _find_factor_files(directory: str, depth: int) -> Iterator[str]:
    for item in folders.list_items(directory):
        if item.name == _FILE and item.is_file:
            yield item.path
        elif depth and item.is_directory and not item.name.startswith(".") and item.name not in layout.VLLM_CACHES:
            yield from _find_factor_files(item.path, depth - 1)


def _read_unverified(path: str) -> Factors | None:
    try:
        content = opening.read_regular(path, opening.check_regular, flags=os.O_NOFOLLOW, limit=_LARGEST)
        # Written back as JSON here too: what can just be parsed may be nested too deeply to be written.
        values = dict(_flatten_value("", json.loads(content), _DEEPEST))
        made = folders.get_status(path).st_mtime
    except (OSError, opening.UnusableEntry, ValueError, RecursionError):
        return None  # gone, or not written by vLLM
    return Factors(os.path.dirname(path), made, values)


def _flatten_value(name: str, value: Any, depth: int) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value and depth:
        for part, below in value.items():
            yield from _flatten_value(f"{name}.{part}" if name else str(part), below, depth - 1)
    else:
        yield name, json.dumps(value, sort_keys=True)
