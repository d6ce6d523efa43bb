"""torch._dynamo.aot_compile_types: compiled graphs as bytes, inside other artifacts or (in vLLM) beside each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from safecache.entries import artifacts, saving
from safecache.hooks.pickle_module import SealingPickle
from safecache.reporting.kinds import Kind

__all__ = ["sealing_pickle"]


class _GraphPickle(SealingPickle):
    """The pickle module, but that every graph is sealed, and verified before it is unpickled."""

    def dumps(self, obj: object, *args: Any, **kwargs: Any) -> bytes:
        """As pickle.dumps, with a seal."""
        content = super().dumps(obj, *args, **kwargs)
        return saving.sealed(content, Kind.AOT_GRAPH) if self._self_enabled() else content

    def loads(self, data: bytes, *args: Any, **kwargs: Any) -> Any:
        """As pickle.loads. Raises EntryRefusedError, in default mode too, for a graph that is refused."""
        if self._self_enabled():
            artifacts.require(Kind.AOT_GRAPH, data)
        return self.__wrapped__.loads(data, *args, **kwargs)


def sealing_pickle(module: Any, *, enabled: Callable[[], bool]) -> Any:
    """A stand-in for the module ``pickle``, all of whose uses there are about whole graphs."""
    return _GraphPickle(module, enabled)
