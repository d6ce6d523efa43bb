"""What an entry is made of, as text: what two honest compiles of one graph have in common, and nothing else.

An entry is taken apart down to what is plain, whatever class it is of, since releases differ in their fields. What may
differ without the code being another is left out by name, or written as what it stands for.
"""

from __future__ import annotations

import enum
import hashlib
import io
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["KEYS", "of_entry"]

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
