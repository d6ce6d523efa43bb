"""The global ``pickle`` of modules that save: of both entry caches, and of what is compiled ahead of time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import wrapt

from safecache import saving

__all__ = ["sealing_pickle"]


class _SealingPickle(wrapt.ObjectProxy[Any]):
    """The pickle module, but for the ``dumps`` of an entry in the middle of its save."""

    def __init__(self, module: Any, enabled: Callable[[], bool]) -> None:
        super().__init__(module)
        self._self_enabled = enabled

    def dumps(self, obj: object, *args: Any, **kwargs: Any) -> bytes:
        """As pickle.dumps; the bytes of an entry come back sealed."""

        def pickled() -> bytes:
            content: bytes = self.__wrapped__.dumps(obj, *args, **kwargs)
            return content

        return saving.dump(obj, pickled) if self._self_enabled() else pickled()


def sealing_pickle(module: Any, *, enabled: Callable[[], bool]) -> Any:
    """A stand-in for the module ``pickle`` that seals entries while ``enabled()``."""
    return _SealingPickle(module, enabled)
