"""What the core tells its observers, and asks of its features: all of it that the author of a feature reads."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from safecache.places.refs import Ref
from safecache.reporting.events import Counted, observe, stop_observing, tell
from safecache.reporting.kinds import Reason
from safecache.reporting.report import Refused

__all__ = [
    "Counted",
    "Found",
    "Hit",
    "Lookup",
    "Outcome",
    "Published",
    "Refused",
    "Saved",
    "Waited",
    "answers",
    "observe",
    "stop_observing",
    "tell",
]


class Outcome(Enum):
    """A bypass is a graph that torch did not look up, or a hit that a setting ignores."""

    HIT = "hit"
    MISS = "miss"
    BYPASS = "bypass"


class Lookup(NamedTuple):
    """A lookup has ended. ``ref``: of a kind of LOOKED_UP. ``reason``: None for a hit.

    ``name``: the compiled function, or the kernel, as its author calls it; "" for a hit. ``frame``: Dynamo's id of the
    compile it was for, such as "0/1", "" outside of one. ``seconds``: what it took. ``saved``: the seconds of compiling
    that a hit has spared. ``is_part``: the lookup of what refers to it goes on.
    """

    ref: Ref
    name: str
    outcome: Outcome
    reason: Reason | None
    detail: str
    seconds: float
    frame: str
    saved: float = 0.0
    is_part: bool = False


class Found(NamedTuple):
    """What a lookup was given, sealed. ``ref``: with the cache that it lies in, at ``origin``; "" for a lower tier."""

    ref: Ref
    content: bytes
    origin: str


class Hit(NamedTuple):
    """A lookup that is no part of another has found these: an entry before those that it refers to."""

    found: list[Found]


class Saved(NamedTuple):
    """An entry was saved, perhaps after a miss. ``seconds``: what its compile took, 0 if that is not known."""

    ref: Ref
    seconds: float = 0.0


class Waited(NamedTuple):
    """So many seconds were waited for what other processes compile or build."""

    ref: Ref
    seconds: float


class Published(NamedTuple):
    """A file was published in the cache ``root``."""

    root: str


class Answers:
    """What the core asks at a miss. ``why_missed``: of a key and the name of its graph or kernel, why it is not there.

    ``compile_seconds``: of the same, how long the compile took when it was last saved there; 0 where nobody knows.
    """

    why_missed: Callable[[Ref, str], Reason] = staticmethod(lambda *_: Reason.NEVER_SEEN)
    compile_seconds: Callable[[Ref, str], float] = staticmethod(lambda *_: 0.0)


answers = Answers()
