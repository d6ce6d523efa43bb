"""The global ``pickle`` of modules that save and load: of the caches, and of what is compiled ahead of time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import wrapt

from safecache.entries import artifacts, saving

__all__ = ["SealingPickle", "sealing_pickle"]


class SealingPickle(wrapt.ObjectProxy[Any]):
    """The pickle module, but for entries in the middle of their save, and files in the middle of their load."""

    def __init__(self, module: Any, enabled: Callable[[], bool]) -> None:
        super().__init__(module)
        self._self_enabled = enabled

    def dumps(self, obj: object, *args: Any, **kwargs: Any) -> bytes:
        """As pickle.dumps; the bytes of an entry come back sealed."""

        def pickled() -> bytes:
            content: bytes = self.__wrapped__.dumps(obj, *args, **kwargs)
            return content

        return saving.dump(obj, pickled) if self._self_enabled() else pickled()

    def loads(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        """As pickle.loads; in the middle of a load, for the bytes alone that were verified."""
        return artifacts.unpickle(data, lambda: self.__wrapped__.loads(data, *args, **kwargs))


def sealing_pickle(module: Any, *, enabled: Callable[[], bool]) -> Any:
    """A stand-in for the module ``pickle`` that seals entries while ``enabled()``."""
    return SealingPickle(module, enabled)
