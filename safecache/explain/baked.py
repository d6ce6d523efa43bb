"""What the keys of a cache were made of that does not depend on a graph: short enough to travel with the cache.

From the records of keys, of what still lies there. Nothing attests those, so it explains, and decides nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from safecache.explain import key_records
from safecache.explain.components import CHOSEN, ENVIRONMENT, PLACE
from safecache.explain.key_records import Component, KeyRecord
from safecache.places import layout
from safecache.places.refs import Ref
from safecache.reporting.kinds import ENTRIES, Kind

__all__ = ["CONFIGS", "is_of_place", "of_keys"]

CONFIGS = ("inductor config ", "functorch config ")
_KEPT = (PLACE, ENVIRONMENT)
_PARTS = ("torch", "triton", "cuda", "hip", "device", "number of CPU threads")
# Variables that say where something lies or what is printed: no key depends on them, and what is collected must not.
_OF_PLACES = re.compile(r"_(DIR|DIRECTORY|FILE|FOLDER|HOME|HOST|LEVEL|LOG|LOGGING|LOGS|PATH|PORT|ROOT|TRACE|URL)$")
_UNSET = Component("", "", "unset")

# Values by their digests, as text, by name.
_Values = dict[str, dict[str, str]]


def is_of_place(name: str) -> bool:
    """Whether a part of this name is a variable that no key depends on."""
    return name.startswith(ENVIRONMENT) and _OF_PLACES.search(name) is not None


def of_keys(roots: Iterable[str]) -> dict[str, Any]:
    """What the records in these caches have, in JSON's types; the same records give the same.

    ``parts``: of entries, settings that the program had not chosen itself, versions and places; ``environment``:
    variables; ``kernels``: of Triton's keys, with ``compilers`` by target; ``recorded``: how many records;
    ``unsure``: how many of these do not say what the program had chosen.
    """
    caches = dict.fromkeys(cache for root in roots for cache in layout.triton_caches(root))
    records = [
        record
        for cache in caches
        for record in key_records.every(cache)
        if record.kind is not Kind.AOT_MODEL and os.path.isdir(Ref(record.kind, record.key, cache).path)
    ]
    entries = [record for record in records if record.kind in ENTRIES]
    kernels = [record for record in records if record.kind is Kind.KERNEL]
    sure = [record for record in entries if any(each.name.startswith(CHOSEN) for each in record.components)]
    parts = _values(map(_unchosen, entries))
    return {
        "recorded": len(records),
        "unsure": len(entries) - len(sure),
        "parts": {name: found for name, found in parts.items() if not name.startswith(ENVIRONMENT)},
        "environment": _complete({n: v for n, v in parts.items() if n.startswith(ENVIRONMENT)}, map(_names, entries)),
        "kernels": _complete(_values(map(_of_kernel, kernels)), map(_names, kernels)),
        "compilers": _compilers(kernels),
    }


def _unchosen(record: KeyRecord) -> Iterator[Component]:
    """What the environment decides. Of a record that does not say what the program has chosen: without settings."""
    lists = {each.name.removeprefix(CHOSEN): each.text for each in record.components if each.name.startswith(CHOSEN)}
    chosen = {f"{title}{name}" for title, names in lists.items() for name in names.split()}
    for each in record.components:
        is_told = (
            bool(lists) and each.name not in chosen if each.name.startswith(CONFIGS) else each.name.startswith(_KEPT)
        )
        if is_told or each.name in _PARTS:
            yield each


def _of_kernel(record: KeyRecord) -> Iterator[Component]:
    yield from (each for each in record.components if each.name == "triton" or each.name.startswith(ENVIRONMENT))


def _names(record: KeyRecord) -> set[str]:
    return {each.name for each in record.components}


def _values(found: Iterable[Iterable[Component]]) -> _Values:
    values: _Values = {}
    for each in (component for components in found for component in components):
        values.setdefault(each.name, {})[each.digest] = _shown(each.text)
    return {name: dict(sorted(values[name].items())) for name in sorted(values)}


def _shown(text: str) -> str:
    """The text, unless it has a path that would name this user."""
    home = os.path.join(os.path.expanduser("~"), "")
    return "(not shown)" if home != os.sep and home in text else text


def _complete(values: _Values, names: Iterable[set[str]]) -> _Values:
    """With a variable that was not set for some of them: an empty digest."""
    for present in names:
        for name in values.keys() - present:
            values[name] = {_UNSET.digest: _UNSET.text, **values[name]}
    return values


def _compilers(kernels: Iterable[KeyRecord]) -> dict[str, list[str]]:
    """The digests of Triton's backend and the compiler that it runs, by target."""
    found: dict[str, set[str]] = {}
    for record in kernels:
        parts: Mapping[str, Component] = {each.name: each for each in record.components}
        backend = parts.get("ptxas") or parts.get("backend")
        if "target" in parts and backend is not None:
            found.setdefault(parts["target"].text, set()).add(backend.digest)
    return {target: sorted(found[target]) for target in sorted(found)}
