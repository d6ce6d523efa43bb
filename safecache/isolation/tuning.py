"""Tunings of Triton's that are under way: what they are still to compile is asked of Triton itself, and goes along.

Triton compiles the configurations of a kernel one after the other, each when it is its turn to be measured.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from safecache.isolation.attempts import Attempt

__all__ = ["Asked", "Tuning", "benching", "choose", "current", "is_asking"]


class Asked(BaseException):
    """Ends a compile that was begun only to see what it asks its cache for: the arguments of attempts.Request.

    No Exception, which somebody on the way might report or take for a failure.
    """


class Tuning:
    """One autotuner's configurations of one call, of which ``left`` have not had their turn."""

    def __init__(self, configs: Iterable[Any]) -> None:
        self.left = list(configs)
        # What was compiled ahead, by cache key.
        self.attempts: dict[str, Attempt] = {}
        self._is_asked = False
        self._function: Any = None
        self._call: tuple[tuple[Any, ...], dict[str, Any]] = (), {}

    def begin(self, function: Any, config: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """It is the turn of ``config``."""
        self._function, self._call = function, (arguments, named)
        self.left = self.left[self.left.index(config) + 1 :] if config in self.left else []

    def end(self) -> None:
        """Nothing more of it is compiled: what was, ahead, is not wanted."""
        self.left = []
        while self.attempts:
            self.attempts.popitem()[1].close()

    def asked(self) -> Iterator[tuple[Any, Any, Any, str]]:
        """What Triton is about to look up for the configurations that are left; once, then nothing."""
        if self._is_asked or not _is_plain(self._function):
            return
        self._is_asked = True
        arguments, named = self._call
        # A hook of a configuration writes the shape of its blocks into descriptors, when it is its turn.
        has_descriptor = any(hasattr(value, "block_shape") for value in (*arguments, *named.values()))
        for config in self.left:
            if config.pre_hook is None or not has_descriptor:
                yield from self._asked_of(config)

    def _asked_of(self, config: Any) -> Iterator[tuple[Any, Any, Any, str]]:
        arguments, named = self._call
        _thread.is_asking = True
        try:
            self._function.run(*arguments, **{**named, **config.all_kwargs(), "warmup": True})
        except Asked as asked:
            yield asked.args
        except Exception:
            # Its own turn comes upon that too, and raises it.
            return
        finally:
            _thread.is_asking = False


class _Thread(threading.local):
    def __init__(self) -> None:
        # By autotuner: while one tunes, what it measures may have another one tune.
        self.chosen: weakref.WeakKeyDictionary[Any, Tuning] = weakref.WeakKeyDictionary()
        self.current: Tuning | None = None
        self.is_asking = False


_thread = _Thread()


def choose(tuner: Any, configs: Iterable[Any]) -> None:
    """Note what it may be about to tune, in this thread."""
    previous = _thread.chosen.pop(tuner, None)
    if previous is not None:
        previous.end()
    _thread.chosen[tuner] = Tuning(configs)


@contextmanager
def benching(tuner: Any, config: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Iterator[None]:
    """It is the turn of this configuration, for this block."""
    tuning = _thread.chosen.get(tuner)
    outer, _thread.current = _thread.current, tuning
    if tuning is not None:
        tuning.begin(tuner.fn, config, arguments, named)
    try:
        yield
    except BaseException:
        if tuning is not None:
            tuning.left = []
        raise
    finally:
        _thread.current = outer
        if tuning is not None and not tuning.left:
            tuning.end()
            _thread.chosen.pop(tuner, None)


def current() -> Tuning | None:
    """The one within which this thread compiles something."""
    return _thread.current


def is_asking() -> bool:
    """Whether what this thread compiles is to end with Asked."""
    return _thread.is_asking


def _is_plain(function: Any) -> bool:
    """Whether to ask does nothing but ask: no hooks of the user's, nor an autotuner in an autotuner."""
    heuristics = sys.modules["triton.runtime.autotuner"].Heuristics
    while type(function) is heuristics:
        function = function.fn
    from safecache.isolation.values import language_of

    hook = sys.modules["triton"].knobs.runtime.jit_cache_hook
    return language_of(function) is not None and hook is None and not function.pre_run_hooks
