"""The features: the one module that names them, and plugs them into the ports of the core."""

from __future__ import annotations

from safecache import ports
from safecache.history import lookups
from safecache.places.refs import Ref
from safecache.ports import Published
from safecache.reporting.kinds import Reason
from safecache.upkeep import limits

__all__ = ["plug"]


def plug() -> None:
    """Have the features hear and answer the core from now on."""
    lookups.observe()
    ports.observe(Published, limits.keep)
    ports.answers.why_missed = _why_missed
    ports.answers.compile_seconds = _compile_seconds


# What explains a miss is imported at a miss: a process that hits needs none of it.


def _why_missed(ref: Ref, name: str) -> Reason:
    from safecache.explain import key_records

    return Reason[key_records.why_absent(ref, name).name]


def _compile_seconds(ref: Ref, name: str) -> float:
    from safecache.explain import key_records

    record = key_records.recall(ref, name)
    return record.took if record is not None else 0.0
