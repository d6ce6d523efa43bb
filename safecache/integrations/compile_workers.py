"""Messages to and from Inductor's compile workers. Imports torch: with the first pool of workers."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

from torch._inductor.compile_worker.subproc_pool import SubprocPickler

from safecache.errors import SafecacheError
from safecache.reporting import waits
from safecache.settings import config
from safecache.signing import keyring
from safecache.tiers import directory_faults, fallback

__all__ = ["WorkerPickler"]


class WorkerPickler(SubprocPickler):  # type: ignore[misc]
    """Pickler of jobs, as torch's, which adds what a worker cannot know.

    A secret by which it attests its builds if there is no signing key. For how long the remote is suspended, which each
    worker would have to find out. Jobs and results say whether their sender seals nothing more.
    """

    def dumps(self, obj: object) -> bytes:
        """Return the bytes of a job or, in a worker, of its result."""
        secret, failing = (b"", {}) if config.is_compile_worker() else _hand_down_state()
        has_stopped = keyring.has_stopped()
        is_plain = not secret and not failing and not has_stopped
        pickled: bytes = super().dumps(obj if is_plain else _Sent(obj, secret, failing, has_stopped))
        return pickled

    def loads(self, data: bytes) -> object:
        """Return a result or, in a worker, a job; a strict error of the job reaches the compile with its own type."""
        found: Any = super().loads(data)
        return partial(_run_job, found) if config.is_compile_worker() else found


def _run_job(job: Callable[[], object]) -> object:
    try:
        return job()
    except SafecacheError as error:
        if not error.is_strict:
            raise
        return error  # torch raises an exception that is returned; of one that is raised it makes a text


def _hand_down_state() -> tuple[bytes, dict[Hashable, float]]:
    secret = keyring.hand_down() if keyring.current().signing is None else b""
    return secret, waits.breaker.now.list_suspended()


class _Sent:
    """A job, or a result, and what comes with it; it unpickles to that alone."""

    def __init__(self, obj: object, secret: bytes, failing: dict[Hashable, float], has_stopped: bool) -> None:
        self._parts = obj, secret, failing, has_stopped

    def __reduce__(self) -> tuple[object, ...]:
        return _receive_object, self._parts


def _receive_object(obj: object, secret: bytes, failing: dict[Hashable, float], has_stopped: bool) -> object:
    if has_stopped:
        keyring.stop_sealing()
    if secret:
        keyring.take_secret(secret)
    for what, seconds in failing.items():
        waits.breaker.now.leave_alone(what, seconds)
    return obj


# Not in the process that makes the pool, which imports this module too.
if config.is_compile_worker():
    directory_faults.leave_to_parent()
    fallback.leave_to_parent()
