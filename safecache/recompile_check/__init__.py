"""Hide a sample of hits from torch, and compare what torch compiles instead with the hidden entries.

A feature: it may import the core, and no other feature.
"""

from __future__ import annotations

import difflib
import enum
import hashlib
import io
import json
import logging
import os
import pickle
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple

from safecache.fs import folders
from safecache.places import layout, metadata
from safecache.places.refs import Ref
from safecache.ports import Found
from safecache.reporting import events
from safecache.reporting.kinds import Count, Kind, Reason
from safecache.session import Part, call_at_exit
from safecache.settings import config, units
from safecache.signing import side_records, trust
from safecache.store import entry_files

__all__ = [
    "KEYS",
    "Difference",
    "Key",
    "compare_entries",
    "format_differences",
    "is_kept",
    "is_new",
    "keep_pair",
    "report_difference",
    "report_uncompared",
    "should_hide",
    "split_entry",
]


# Bytes that wait for what is saved: beyond, nothing more is hidden.
_MOST_BYTES = 256 << 20

_REMEDY = (
    "Something that decides about the code is not in its key, such as a custom operator's schema, or "
    "this graph never compiles to the same code twice. Help: safecache help recompile_check"
)
# Of this process: a forked child is to say nothing of what its parent has used.
_differing: Part[list[str]] = Part(list)

# The oldest go first.
_MOST = 20
_FOUND, _MADE, _TEXT, _SUMMARY = "in_the_cache.entry", "compiled_now.entry", "difference.txt", "report.json"
_RECORD = "record"

Key = tuple[Kind, str]
# Of an entry that is another altogether, a few parts say so; the code first, which is what matters.
_MOST_PARTS, _MOST_LINES, _LONGEST_LINE = 5, 40, 200
_FIRST = ("source_code", "guards", "constants", "mutated")

# Fields that say when, how long, where, or for whom, but not what. By their names, in whatever class.
_LEFT_OUT = frozenset(
    {
        # How long it took, and what was counted meanwhile.
        "forward_time_taken_ns",
        "backward_time_taken_ns",
        "time_taken_ns",
        "_time_taken_ns",
        "metrics_deltas",
        "counter_deltas",
        # The lines of the program that an operator comes from: comments in another file move them.
        "cache_linemap",
        "inductor_provenance_mapping_str",
        "inductor_provenance_stack_traces_str",
        "stack_traces",
        "stack_trace",
        "stack",
        # Numbers in the order of a process's compiles, and the name of the generated file, whose comments hold them.
        "compile_id_str",
        "aot_id",
        "graph_id",
        "cache_key",
        # What is only there once it has been loaded, or for a debugger.
        "current_callable",
        "recursively_apply_fns",
        "compiled_fn_runner",
        "_compile_context",
        "tangent_source_stack_traces",
        # The same graphs again, as text for people and as a pickle: what is generated of them is compared.
        "runnable_graph_str",
        "inductor_post_grad_graph_str",
        "_original_gm",
        "_serialized_original_gm",
        # The same graphs as text for people, with names of the program's: what is generated of them is compared.
        "aot_joint_graph_str",
        "aot_forward_graph_str",
        "aot_backward_graph_str",
        "min_cut_info_str",
        # Which of a kernel's configurations is the fastest is measured anew; where it is known, no other is compiled.
        "autotune_cache_info",
        # Kernels, by the hash of their source, which is compared.
        "_triton_bundle",
    }
)
# A pair: a key, and what it was made of, in words for a log.
KEYS = "fx_graph_cache_info"
# Python's comments, which name lines of the program; a directive of C++ has no blank there.
_COMMENT = re.compile(r"^\s*# .*$|\s+# (?:File|Topologically|kernel path).*$", re.MULTILINE)
# A name that torch makes of the hash of what it has written, or of a directory: what it stands for is compared itself.
_PLACE = re.compile(r"(?:/[\w.+@-]+)+/(?=[a-z0-9]{2}/c[a-z2-7]{40,}|triton/|aotautograd/|fxgraph/)")
_BLANK_LINES = re.compile(r"\n\s*\n+")
_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}\b")
# Of Triton and the first ptxas that it finds: another one, once Inductor has compiled a kernel in the process.
_TOOLS = re.compile(r"'backend_hash': '[0-9A-F]{64}'")
# So many values are more than any entry has; beyond, it is compared as far as that.
_MOST_VALUES = 2_000_000


class _State:
    def __init__(self) -> None:
        # By key, what was found under it and not yet compared, before the entries that it refers to.
        self.hidden: dict[Key, Sequence[Found]] = {}
        # What torch has missed for that: a key is compiled again once in a process.
        self.sampled: set[Key] = set()
        self.size = 0


# A forked child compiles what it hits itself.
_state: Part[_State] = Part(_State)


def should_hide(found: Sequence[Found]) -> bool:
    """Tell whether these hits are of the sample: all ranks of a job say the same of a key.

    The graphs that a hidden entry refers to are hidden too, as each is looked up.
    """
    if not config.current().recompile_sample or not found:
        return False
    state, key = _state.now, _make_key(found[0])
    with _state.lock:
        if key in state.sampled:
            return False
        if key not in state.hidden:
            size = sum(len(each.content) for each in found)
            digest = hashlib.sha256(f"{config.job_id()} {key[0].word} {key[1]}".encode()).digest()
            is_of_sample = int.from_bytes(digest[:8], "big") < config.current().recompile_sample * 2**64
            if not is_of_sample or state.size + size > _MOST_BYTES:
                return False
            state.size += size
            state.hidden |= {_make_key(each): found[number:] for number, each in enumerate(found)}
        state.sampled.add(key)
        return True


def is_new(ref: Ref, content: bytes) -> bool:
    """Compare what is about to be saved with what was hidden under its key; False if they are alike."""
    state, key = _state.now, (ref.kind, ref.key)
    with _state.lock:
        found = state.hidden.pop(key, None)
        if found is None:
            return True
        state.size -= len(found[0].content)
    hidden = {_make_key(each): each.content for each in found}
    try:
        differences = compare_entries(key, hidden, _Made(ref.root, {key: content}))
    except Exception as error:  # of a class that cannot be taken apart
        report_uncompared(f"{ref.kind.noun} {ref.key}", f"{type(error).__name__}: {error}")
        return True
    if differences:
        report_difference(found[0], content, differences)
    else:
        events.count(Count.RECOMPILED)
    return bool(differences)


def _make_key(found: Found) -> Key:
    return found.ref.kind, found.ref.key


class _Made(dict[Key, bytes]):
    """Maps keys to what was made: the entry, and graphs that it refers to, each read when it is asked for."""

    def __init__(self, root: str, made: Mapping[Key, bytes]) -> None:
        super().__init__(made)
        self._root = root

    def __contains__(self, key: Any) -> bool:
        return super().__contains__(key) or bool(layout.list_entries(Ref(key[0], key[1], self._root).directory))

    def __missing__(self, key: tuple[Kind, str]) -> bytes:
        ref = Ref(key[0], key[1], self._root)
        for name in layout.list_entries(ref.directory):
            return entry_files.read_unverified_entry(ref.name_file(name).path, entry_files.max_entry_size(ref.kind))
        raise KeyError(key)


def report_uncompared(what: str, why: str) -> None:
    """Report what was compiled again and could not be compared."""
    events.report(Reason.NOT_RECOMPILED, f"did not compare {what}", why=why, cause=why)


def report_difference(entry: Found, made: bytes, differences: list[Difference]) -> str:
    """Report it, keep both and set the entry aside; where its evidence lies then, "" for nowhere.

    Not set aside is what has differed before: it recompiles differently each time, and would be so at each start.
    """
    kind, key = entry.ref.kind, entry.ref.key
    root = entry.ref.root or config.cache_directory() or ""
    kept, said = "", "It has differed before, and is left where it is."
    if not is_kept(root, (kind, key)):
        kept, said = _keep_evidence(root, entry, made, differences)
        said = f"{said} {_quarantine_entry(entry)}"
    text, why = f"{kind.noun} {entry.origin or key} recompiles differently", format_differences(differences)
    if not _differing.now:
        call_at_exit(_say_at_the_end)
    _differing.now.append(f"{kind.noun} {key}")
    events.report(Reason.DIFFERS, text, why=why, cause=key, remedy=f"{said} {_REMEDY}")
    return kept


def _keep_evidence(root: str, entry: Found, made: bytes, differences: list[Difference]) -> tuple[str, str]:
    try:
        shown, facts = format_differences(differences), {"path": entry.origin}
        place = keep_pair(root, (entry.ref.kind, entry.ref.key), entry.content, made, shown, facts)
    except OSError as error:
        return "", f"Nothing could be kept as evidence: {error.strerror or error}."
    return place, f"Both are in {place}."


def _quarantine_entry(entry: Found) -> str:
    if not entry.ref.root:
        return "It stays, because it is in a lower tier."
    moved = entry_files.quarantine(entry.origin, entry.ref.root, Reason.DIFFERS, entry.content)
    if moved is None:
        return "It could not be moved away, or was replaced since."
    events.count(Count.QUARANTINED)
    return f"It was moved to {moved}, and what is compiled now is used and saved."


def _say_at_the_end() -> None:
    differing = _differing.now
    if differing and config.current().strict:
        which = ", ".join(differing)
        recompile = units.write_count(len(differing), "entry recompiles", "entries recompile")
        text = f"safecache: {recompile} differently: {which}"
        events.log_line(logging.ERROR, text)
        _differing.reset()


def is_kept(root: str, key: Key) -> bool:
    """Whether this user has kept some of this key in this cache: what others have left there proves nothing."""
    name = _name_pair(key)
    try:
        with folders.open_subdirectory(root, (metadata.FOLDER, metadata.DIFFERENCES, name)) as folder:
            return side_records.read_own(folder, _RECORD, _make_subject(name)) is not None
    except OSError:
        return False


def keep_pair(root: str, key: Key, found: bytes, made: bytes, text: str, facts: Mapping[str, str]) -> str:
    """Store both entries and their difference in the cache ``root``; return the path. On OSError nothing stays."""
    name = _name_pair(key)
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    summary = {"kind": key[0].value, "cache_key": key[1], "time": moment, **facts}
    content = {_FOUND: found, _MADE: made, _TEXT: text.encode(), _SUMMARY: json.dumps(summary).encode()}
    sealed = side_records.seal_record(_make_subject(name), {"time": moment})
    if sealed is not None:
        content[_RECORD] = sealed
    with folders.open_subdirectory(root, (metadata.FOLDER, metadata.DIFFERENCES), make=True) as place:
        draft = f".{name}.{os.urandom(4).hex()}"
        try:
            with place.enter(draft, make=True) as folder:
                for each, data in content.items():
                    folder.write(each, data)
            # That of an earlier time is of an entry that was recompiled since.
            with suppress(FileNotFoundError):
                place.remove(name)
            place.rename(draft, place, name)
        except OSError:
            with suppress(OSError):
                place.remove(draft)
            raise
        with suppress(OSError):  # it is kept, and the next makes room
            kept = sorted(place.list_names(), key=lambda each: folders.get_mtime(f"{place.path}/{each}"), reverse=True)
            for each in kept[_MOST:]:
                with suppress(FileNotFoundError):  # another process has removed it
                    place.remove(each)
    return metadata.make_path(root, metadata.DIFFERENCES, name)


def _make_subject(name: str) -> str:
    return f"difference {name}"


def _name_pair(key: Key) -> str:
    return f"{key[0].word}-{hashlib.sha256(key[1].encode()).hexdigest()[:16]}"


class Difference(NamedTuple):
    """A part that differs, by its place in the entry, and a unified diff of it."""

    part: str
    diff: str


def compare_entries(key: Key, found: Mapping[Key, bytes], made: Mapping[Key, bytes]) -> list[Difference]:
    """How the entry ``found`` under this key differs from the one that was ``made``; nothing if not at all.

    Both may hold the FX graph entries that an AOTAutograd entry refers to: what differs is then shown of those too.
    Only what a trusted key has sealed is unpickled: raises ValueError for anything else, and what unpickling does.
    """
    before, after = split_entry(_unpickle_entry(key, found)), split_entry(_unpickle_entry(key, made))

    def rank(place: str) -> tuple[int, str]:
        return next((number for number, word in enumerate(_FIRST) if word in place), len(_FIRST)), place

    differing = sorted((place for place in {**before, **after} if before.get(place) != after.get(place)), key=rank)
    shown = [Difference(each, _diff_texts(before.get(each, ""), after.get(each, ""))) for each in differing]
    referred = _pair_graphs(before, after) if shown and key[0] is Kind.AOT_ENTRY else ()
    return [*(each for pair in referred for each in _diff_graphs(pair, found, made)), *shown][:_MOST_PARTS]


def _unpickle_entry(key: Key, content: Mapping[Key, bytes]) -> object:
    refusal = trust.judge(content[key], *key, None)
    if refusal is not None:
        raise ValueError(f"{key[0].noun} {key[1]}: {refusal.evidence}")
    return pickle.loads(content[key])  # noqa: S301  judged above


def _pair_graphs(before: Mapping[str, str], after: Mapping[str, str]) -> list[tuple[Key, Key]]:
    """The graphs that two AOTAutograd entries name in the same place, where they are others."""
    names = [place for place in before if f".{KEYS}." in f".{place}" and place in after]
    return [((Kind.FX_ENTRY, before[each]), (Kind.FX_ENTRY, after[each])) for each in names]


def _diff_graphs(pair: tuple[Key, Key], found: Mapping[Key, bytes], made: Mapping[Key, bytes]) -> Iterator[Difference]:
    """Yield what differs in the code of two graphs of different keys, if both are present."""
    one, other = pair
    if one != other and one in found and other in made:
        before, after = (split_entry(_unpickle_entry(*each)) for each in ((one, found), (other, made)))
        if before.get("source_code") != after.get("source_code"):
            yield Difference("source_code", _diff_texts(before.get("source_code", ""), after.get("source_code", "")))


def _diff_texts(before: str, after: str) -> str:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), "in the cache", "compiled now", "", "", 2, "")
    shown = [line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}…" for line in islice(lines, _MOST_LINES)]
    return "\n".join([*shown, *(["…"] if next(lines, None) is not None else [])])


def format_differences(differences: list[Difference]) -> str:
    """Return all ``differences`` as text."""
    return "\n".join(f"{part}:\n{diff}" for part, diff in differences)


def split_entry(entry: object) -> dict[str, str]:
    """The parts by their places in the entry. Raises what a property or a reducer of a foreign class does."""
    return dict(_Walk().iter_parts("", entry))


class _Walk:
    def __init__(self) -> None:
        self._above: set[int] = set()
        self._left = _MOST_VALUES

    def iter_parts(self, place: str, value: Any) -> Iterator[tuple[str, str]]:
        self._left -= 1
        text = _describe_plain(value)
        if text is not None or self._left < 0:
            yield place, text or ""
            return
        if id(value) in self._above:
            yield place, f"<{_name_class(type(value))} above>"
            return
        self._above.add(id(value))
        try:
            children = list(_iter_children(value))
            if not children:
                yield place, f"<{_name_class(type(value))}>"
            for name, child in children:
                if name == KEYS and isinstance(child, tuple):
                    child = child[:1]
                if name not in _LEFT_OUT:
                    yield from self.iter_parts(f"{place}.{name}" if place else name, child)
        finally:
            self._above.discard(id(value))


def _describe_plain(value: Any) -> str | None:
    """``value`` in words; None for what has parts."""
    if isinstance(value, str):
        return _normalize_text(value)
    if value is None or isinstance(value, (bool, int, float, complex, enum.Enum)):
        return repr(value)
    if isinstance(value, (bytes, bytearray)):
        return f"{len(value)} bytes, SHA-256 {hashlib.sha256(value).hexdigest()}"
    if isinstance(value, type):
        return _name_class(value)
    if callable(value) and hasattr(value, "__qualname__") and not hasattr(value, "__self__"):
        return f"{value.__module__}.{value.__qualname__}"
    if type(value).__module__.partition(".")[0] in ("torch", "sympy") and not hasattr(value, "__dict__"):
        return _normalize_text(repr(value))  # a dtype, a device, a symbol
    return None


def _normalize_text(text: str) -> str:
    return _BLANK_LINES.sub("\n", _TOOLS.sub("", _ADDRESS.sub("0x", _PLACE.sub("<cache>/", _COMMENT.sub("", text)))))


def _iter_children(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from sorted(((_format_key(key), child) for key, child in value.items()), key=lambda each: each[0])
    elif isinstance(value, (set, frozenset)):
        yield "members", " ".join(sorted(_format_key(each) for each in value))
    elif isinstance(value, (list, tuple)):
        names = getattr(type(value), "_fields", range(len(value)))
        yield from ((str(name), child) for name, child in zip(names, value, strict=False))
    elif _name_class(type(value)).startswith("torch.") and hasattr(value, "untyped_storage"):
        yield from _iter_tensor_parts(value)
    else:
        yield "class", type(value)
        yield from _iter_attributes(value)


def _iter_tensor_parts(value: Any) -> Iterator[tuple[str, Any]]:
    yield "tensor", f"{type(value).__name__} {value.dtype} {tuple(value.shape)} {value.stride()} {value.device}"
    if f"{value.device} {value.layout}" == "cpu torch.strided" and not hasattr(value, "fake_mode"):
        file = io.BytesIO()
        sys.modules["torch"].save(value.detach().contiguous().clone(), file)
        yield "content", file.getvalue()


def _iter_attributes(value: Any) -> Iterator[tuple[str, Any]]:
    found = getattr(value, "__dict__", None)
    if found is None:
        try:
            found = value.__reduce_ex__(4)
        except Exception as error:
            found = {"unknown": f"{type(error).__name__}"}
    yield from _iter_children(found)


def _format_key(key: Any) -> str:
    return key if isinstance(key, str) else _describe_plain(key) or f"{key}"


def _name_class(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
