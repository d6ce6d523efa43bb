"""Entries of one key from two compiles, compared, and what is shown of the parts that differ."""

from __future__ import annotations

import difflib
import enum
import hashlib
import io
import pickle
import re
import sys
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from safecache.reporting.kinds import Kind
from safecache.signing import trust

__all__ = ["KEYS", "Difference", "Key", "compare", "of_entry", "show"]

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
_MOST = 2_000_000


class Difference(NamedTuple):
    """A part that differs, by its place in the entry, and a unified diff of it."""

    part: str
    diff: str


def compare(key: Key, found: Mapping[Key, bytes], made: Mapping[Key, bytes]) -> list[Difference]:
    """How the entry ``found`` under this key differs from the one that was ``made``; nothing if not at all.

    Both may hold the FX graph entries that an AOTAutograd entry refers to: what differs is then shown of those too.
    Only what a trusted key has sealed is unpickled: raises ValueError for anything else, and what unpickling does.
    """
    before, after = of_entry(_loaded(key, found)), of_entry(_loaded(key, made))
    differing = [place for place in {**before, **after} if before.get(place) != after.get(place)]
    shown = [Difference(each, _diff(before.get(each, ""), after.get(each, ""))) for each in _in_order(differing)]
    referred = _referred(before, after) if shown and key[0] is Kind.AOT_ENTRY else ()
    return [*(each for pair in referred for each in _graphs(pair, found, made)), *shown][:_MOST_PARTS]


def _loaded(key: Key, content: Mapping[Key, bytes]) -> object:
    refusal = trust.judge(content[key], *key, None)
    if refusal is not None:
        raise ValueError(f"{key[0].noun} {key[1]}: {refusal.evidence}")
    return pickle.loads(content[key])  # noqa: S301  judged above


def _in_order(places: list[str]) -> list[str]:
    def rank(place: str) -> tuple[int, str]:
        return next((number for number, word in enumerate(_FIRST) if word in place), len(_FIRST)), place

    return sorted(places, key=rank)


def _referred(before: Mapping[str, str], after: Mapping[str, str]) -> list[tuple[Key, Key]]:
    """The graphs that two AOTAutograd entries name in the same place, where they are others."""
    names = [place for place in before if f".{KEYS}." in f".{place}" and place in after]
    return [((Kind.FX_ENTRY, before[each]), (Kind.FX_ENTRY, after[each])) for each in names]


def _graphs(pair: tuple[Key, Key], found: Mapping[Key, bytes], made: Mapping[Key, bytes]) -> Iterator[Difference]:
    """What differs in the code of two graphs of different keys, as far as both are there."""
    one, other = pair
    if one != other and one in found and other in made:
        before, after = (of_entry(_loaded(*each)) for each in ((one, found), (other, made)))
        if before.get("source_code") != after.get("source_code"):
            yield Difference("source_code", _diff(before.get("source_code", ""), after.get("source_code", "")))


def _diff(before: str, after: str) -> str:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), "in the cache", "compiled now", "", "", 2, "")
    shown = [line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}…" for line in islice(lines, _MOST_LINES)]
    return "\n".join([*shown, *(["…"] if next(lines, None) is not None else [])])


def show(differences: list[Difference]) -> str:
    """All of them, as text."""
    return "\n".join(f"{part}:\n{diff}" for part, diff in differences)


def of_entry(entry: object) -> dict[str, str]:
    """The parts by their places in the entry. Raises what a property or a reducer of a foreign class does."""
    return dict(_Walk().parts("", entry))


class _Walk:
    def __init__(self) -> None:
        self._above: set[int] = set()
        self._left = _MOST

    def parts(self, place: str, value: Any) -> Iterator[tuple[str, str]]:
        self._left -= 1
        text = _plain(value)
        if text is not None or self._left < 0:
            yield place, text or ""
            return
        if id(value) in self._above:
            yield place, f"<{_name(type(value))} above>"
            return
        self._above.add(id(value))
        try:
            children = list(_children(value))
            if not children:
                yield place, f"<{_name(type(value))}>"
            for name, child in children:
                if name == KEYS and isinstance(child, tuple):
                    child = child[:1]
                if name not in _LEFT_OUT:
                    yield from self.parts(f"{place}.{name}" if place else name, child)
        finally:
            self._above.discard(id(value))


def _plain(value: Any) -> str | None:
    """``value`` in words; None for what has parts."""
    if isinstance(value, str):
        return _text(value)
    if value is None or isinstance(value, (bool, int, float, complex, enum.Enum)):
        return repr(value)
    if isinstance(value, (bytes, bytearray)):
        return f"{len(value)} bytes, SHA-256 {hashlib.sha256(value).hexdigest()}"
    if isinstance(value, type):
        return _name(value)
    if callable(value) and hasattr(value, "__qualname__") and not hasattr(value, "__self__"):
        return f"{value.__module__}.{value.__qualname__}"
    if type(value).__module__.partition(".")[0] in ("torch", "sympy") and not hasattr(value, "__dict__"):
        return _text(repr(value))  # a dtype, a device, a symbol
    return None


def _text(text: str) -> str:
    return _BLANK_LINES.sub("\n", _TOOLS.sub("", _ADDRESS.sub("0x", _PLACE.sub("<cache>/", _COMMENT.sub("", text)))))


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from sorted(((_short(key), child) for key, child in value.items()), key=lambda each: each[0])
    elif isinstance(value, (set, frozenset)):
        yield "members", " ".join(sorted(_short(each) for each in value))
    elif isinstance(value, (list, tuple)):
        names = getattr(type(value), "_fields", range(len(value)))
        yield from ((str(name), child) for name, child in zip(names, value, strict=False))
    elif _name(type(value)).startswith("torch.") and hasattr(value, "untyped_storage"):
        yield from _of_tensor(value)
    else:
        yield "class", type(value)
        yield from _state(value)


def _of_tensor(value: Any) -> Iterator[tuple[str, Any]]:
    yield "tensor", f"{type(value).__name__} {value.dtype} {tuple(value.shape)} {value.stride()} {value.device}"
    if f"{value.device} {value.layout}" == "cpu torch.strided" and not hasattr(value, "fake_mode"):
        file = io.BytesIO()
        sys.modules["torch"].save(value.detach().contiguous().clone(), file)
        yield "content", file.getvalue()


def _state(value: Any) -> Iterator[tuple[str, Any]]:
    found = getattr(value, "__dict__", None)
    if found is None:
        try:
            found = value.__reduce_ex__(4)
        except Exception as error:
            found = {"unknown": f"{type(error).__name__}"}
    yield from _children(found)


def _short(key: Any) -> str:
    return key if isinstance(key, str) else _plain(key) or f"{key}"


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
