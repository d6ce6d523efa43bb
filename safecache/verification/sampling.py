"""Which hits are compiled again: a share of those in calls of compile_fx, whose graph is at hand there."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from safecache import compiles, ports
from safecache.ports import Found, Hit
from safecache.reporting.kinds import Kind
from safecache.settings import config
from safecache.verification import background, graphs, verdicts
from safecache.verification.background import Job
from safecache.verification.verdicts import Entry

__all__ = ["sampling"]

# Not the generator of the program, whose numbers are to be what they are without us.
_random = random.SystemRandom()


@contextmanager
def sampling(graph: Any, inputs: Sequence[Any], rest: Sequence[Any], named: Mapping[str, Any]) -> Iterator[None]:
    """A call of compile_fx with these arguments: if it is of the sample, what it hits is compiled again later."""
    ports.observe(Hit, _hit)
    with compiles.scope(sampled_calls=compiles.current.sampled_calls + 1):
        # The same call again, inside of itself, where configuration is patched for it.
        if compiles.current.hits is not None or not _is_of_sample():
            yield
        else:
            with _sampled(graph, inputs, rest, named):
                yield


def _is_of_sample() -> bool:
    return _random.random() < config.current().verify


@contextmanager
def _sampled(graph: Any, inputs: Sequence[Any], rest: Sequence[Any], named: Mapping[str, Any]) -> Iterator[None]:
    # Now, for the call owns the graph and may change it.
    taken, why_not = _taken(graph, inputs, rest, named)
    hits: list[Found] = []
    with compiles.scope(hits=hits):
        yield
    if hits and taken is None:
        verdicts.unverified(f"{hits[0].ref.kind.noun} {hits[0].ref.key}", why_not)
    elif hits and taken is not None:
        entries = [Entry((each.ref.kind, each.ref.key), each.content, each.origin, each.ref.root) for each in hits]
        background.submit(Job(taken, entries))


def _taken(graph: Any, inputs: Any, rest: Any, named: Any) -> tuple[bytes | None, str]:
    try:
        return graphs.take(graph, inputs, rest, named), ""
    except graphs.UnverifiableError as error:
        return None, str(error)
    except Exception as error:  # of torch's, whose compile goes on
        return None, f"it cannot be taken: {type(error).__name__}: {error}"


def _hit(hit: Hit) -> None:
    found = hit.found
    if compiles.current.hits is not None:
        compiles.current.hits += found
    elif not compiles.current.sampled_calls and found and found[0].ref.kind is Kind.FX_ENTRY and _is_of_sample():
        # The graph that AOTAutograd has split it off from is gone.
        what = f"{Kind.FX_ENTRY.noun} {found[0].ref.key}"
        verdicts.unverified(what, "it was looked up by itself, as a backward graph is whose forward graph was compiled")
