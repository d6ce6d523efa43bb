"""Imported by name in Inductor's compile workers: importing it is what activates safecache there."""

from __future__ import annotations

from torch._inductor.compile_worker.subproc_pool import SubprocPickler

from safecache.patching import activation
from safecache.settings import config
from safecache.signing import keyring
from safecache.tiers import directory_faults, fallback

__all__ = ["WorkerPickler"]


class WorkerPickler(SubprocPickler):  # type: ignore[misc]
    """Pickles jobs as torch's own does, with what the worker attests its builds by where no key can be had."""

    def dumps(self, obj: object) -> bytes:
        """A job, or in a worker its result."""
        is_job = not config.is_one() and keyring.current().signing is None
        pickled: bytes = super().dumps(_Job(obj, keyring.hand_down()) if is_job else obj)
        return pickled


class _Job:
    """A job and the secret; unpickled, the job alone."""

    def __init__(self, job: object, secret: bytes) -> None:
        self._parts = secret, job

    def __reduce__(self) -> tuple[object, ...]:
        return _received, self._parts


def _received(secret: bytes, job: object) -> object:
    keyring.take(secret)
    return job


# Not where the pool is made: that process imports this too.
if config.is_one():
    # Where torch's source is patched, a hook there may have loaded the package before, which activates nothing.
    if config.current().enabled:
        activation.activate()
    directory_faults.leave_to_parent()
    fallback.leave_to_parent()
