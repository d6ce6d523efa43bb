"""The global ``pickle`` of torch's modules that save and load: for caches, and for ahead-of-time compilation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import wrapt

from safecache.entries import artifacts, saving

__all__ = ["SealingPickle"]


class SealingPickle(wrapt.ObjectProxy[Any]):
    """The pickle module, except for entries while they are saved, and files while they are loaded."""

    def __init__(self, module: Any, enabled: Callable[[], bool]) -> None:
        super().__init__(module)
        self._self_enabled = enabled

    def dumps(self, obj: object, *args: Any, **kwargs: Any) -> bytes:
        """As pickle.dumps, but the bytes of an entry are sealed."""

        def pickled() -> bytes:
            content: bytes = self.__wrapped__.dumps(obj, *args, **kwargs)
            return content

        return saving.dump(obj, pickled) if self._self_enabled() else pickled()

    def loads(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        """As pickle.loads, but during a load for the verified bytes only."""
        return artifacts.unpickle(data, lambda: self.__wrapped__.loads(data, *args, **kwargs))
