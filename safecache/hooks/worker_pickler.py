"""Imported by name in Inductor's compile workers: importing it is what activates safecache there."""

from __future__ import annotations

from torch._inductor.compile_worker.subproc_pool import SubprocPickler

from safecache.patching import activation
from safecache.settings import compile_workers, config
from safecache.signing import ephemeral, keyring
from safecache.tiers import fallback, permissions

__all__ = ["WorkerPickler"]


class WorkerPickler(SubprocPickler):  # type: ignore[misc]
    """Pickles jobs as torch's own does, with what the worker attests its builds by where no key can be had."""

    def dumps(self, obj: object) -> bytes:
        """A job, or in a worker its result."""
        is_job = not compile_workers.is_one() and keyring.current().signing is None
        pickled: bytes = super().dumps(_Job(obj, ephemeral.hand_down()) if is_job else obj)
        return pickled


class _Job:
    """A job and the secret; unpickled, the job alone."""

    def __init__(self, job: object, secret: bytes) -> None:
        self._parts = secret, job

    def __reduce__(self) -> tuple[object, ...]:
        return _received, self._parts


def _received(secret: bytes, job: object) -> object:
    ephemeral.take(secret)
    return job


# Not where the pool is made: that process imports this too.
if compile_workers.is_one():
    # Where torch's source is patched, that has imported the package before, which activates nothing.
    if config.current().enabled:
        activation.activate()
    permissions.leave_to_parent()
    fallback.leave_to_parent()
