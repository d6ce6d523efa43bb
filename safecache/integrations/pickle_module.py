"""The global ``pickle`` of torch's modules that save and load: for caches, and for ahead-of-time compilation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import wrapt

from safecache.entries import artifacts, saving
from safecache.patching.hook import PICKLE_MODULE, verifier

__all__ = ["SealingPickle", "sealing_pickle"]


class SealingPickle(wrapt.ObjectProxy[Any]):
    """The pickle module, except for entries while they are saved, and files while they are loaded."""

    def __init__(self, module: Any, enabled: Callable[[], bool]) -> None:
        super().__init__(module)
        self._self_enabled = enabled

    def dumps(self, obj: object, *args: Any, **kwargs: Any) -> bytes:
        """Pickle ``obj``, and seal the bytes if they are an entry. Like pickle.dumps otherwise."""

        def pickle_object() -> bytes:
            content: bytes = self.__wrapped__.dumps(obj, *args, **kwargs)
            return content

        return saving.dump(obj, pickle_object) if self._self_enabled() else pickle_object()

    def loads(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        """Unpickle ``data``; during a load, only the verified bytes. Like pickle.loads otherwise."""
        return artifacts.unpickle(data, lambda: self.__wrapped__.loads(data, *args, **kwargs))


@verifier(
    ("torch._inductor.codecache:pickle", "torch._functorch._aot_autograd.autograd_cache:pickle"),
    PICKLE_MODULE,
    why="Torch pickles entries without a checksum or signature, so flipped bits and planted entries unpickle "
    "unnoticed.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/codecache.py#L2362",
)
def sealing_pickle(module: Any, *, enabled: Callable[[], bool]) -> Any:
    """A proxy of the module ``pickle`` that seals entries while ``enabled()``."""
    return SealingPickle(module, enabled)
