"""Triton autotuning in progress: the configurations still to come are compiled along with the current one.

Triton itself compiles a kernel's configurations one by one, each when it is its turn to be measured.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from safecache.isolation.attempts import Attempt

from safecache import compiles

__all__ = ["Asked", "Tuning", "benching", "choose", "current"]


class Asked(BaseException):
    """Ends a compile begun only to see what it looks up in its cache. Its arguments are those of attempts.Request.

    Not an Exception, which code on the way might report or take for a failure.
    """


class Tuning:
    """The configurations of one autotuner call; those in ``left`` have not had their turn."""

    def __init__(self, configs: Iterable[Any]) -> None:
        self.left = list(configs)
        # What was compiled ahead, by cache key.
        self.attempts: dict[str, Attempt] = {}
        self._is_asked = False
        self._function: Any = None
        self._call: tuple[tuple[Any, ...], dict[str, Any]] = (), {}

    def begin(self, function: Any, config: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Note that it is the turn of ``config``, with this call."""
        self._function, self._call = function, (arguments, named)
        self.left = self.left[self.left.index(config) + 1 :] if config in self.left else []

    def end(self) -> None:
        """Discard what was compiled ahead: nothing more is compiled."""
        self.left = []
        while self.attempts:
            self.attempts.popitem()[1].close()

    def asked(self) -> Iterator[tuple[Any, Any, Any, str]]:
        """The arguments of attempts.Request for each configuration that is left; nothing after the first call."""
        if self._is_asked or not _is_plain(self._function):
            return
        self._is_asked = True
        arguments, named = self._call
        # On its turn, a configuration's hook writes its block shapes into descriptors.
        has_descriptor = any(hasattr(value, "block_shape") for value in (*arguments, *named.values()))
        for config in self.left:
            if config.pre_hook is None or not has_descriptor:
                yield from self._asked_of(config)

    def _asked_of(self, config: Any) -> Iterator[tuple[Any, Any, Any, str]]:
        arguments, named = self._call
        try:
            with compiles.scope(asks_kernel=True):
                self._function.run(*arguments, **{**named, **config.all_kwargs(), "warmup": True})
        except Asked as asked:
            yield asked.args
        except Exception:
            # Its own turn will meet the same error and raise it.
            return


def choose(tuner: Any, configs: Iterable[Any]) -> None:
    """Note the configurations that ``tuner`` may be about to measure in this thread."""
    # By autotuner: while one tunes, the code that it measures may start another.
    chosen = compiles.current.tunings = compiles.current.tunings or weakref.WeakKeyDictionary()
    previous = chosen.pop(tuner, None)
    if previous is not None:
        previous.end()
    chosen[tuner] = Tuning(configs)


@contextmanager
def benching(tuner: Any, config: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Iterator[None]:
    """For this block, it is the turn of ``config``."""
    tunings = compiles.current.tunings or {}
    tuning = tunings.get(tuner)
    if tuning is not None:
        tuning.begin(tuner.fn, config, arguments, named)
    try:
        with compiles.scope(kernel_tuning=tuning):
            yield
    except BaseException:
        if tuning is not None:
            tuning.left = []
        raise
    finally:
        if tuning is not None and not tuning.left:
            tuning.end()
            tunings.pop(tuner, None)


def current() -> Tuning | None:
    """The tuning that this thread is compiling for; None if there is none."""
    found: Tuning | None = compiles.current.kernel_tuning
    return found


def _is_plain(function: Any) -> bool:
    """Whether a compile begun to ask has no side effects: no hooks of the user's, no nested autotuner."""
    heuristics = sys.modules["triton.runtime.autotuner"].Heuristics
    while type(function) is heuristics:
        function = function.fn
    from safecache.isolation.values import language_of

    hook = sys.modules["triton"].knobs.runtime.jit_cache_hook
    return language_of(function) is not None and hook is None and not function.pre_run_hooks
