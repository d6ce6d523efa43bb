"""Sender: uploads what was compiled in the background, from a bounded queue, so that no compile waits for it."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from safecache.places.refs import Ref
from safecache.ports import File
from safecache.remote import client, parcels, stores
from safecache.remote.client import Client, Unavailable
from safecache.remote.parcels import Parcel
from safecache.remote.stores import Oversized
from safecache.reporting import events
from safecache.reporting.kinds import ENTRIES, Count, Kind, Reason
from safecache.session import Part, call_at_exit
from safecache.settings import config, units
from safecache.store import bundles, wire

__all__ = ["Sent", "enqueue", "flush", "run_after_queue", "send"]

_MOST_WAITING = 4096
# Seconds.
_LONGEST_END = 5.0
# Of one key, while others add to it too.
_MOST_TRIES = 20


class Sent(NamedTuple):
    """Outcome of an upload. ``size``: bytes sent. ``why_not``: a failure, or empty. ``is_final``: it lasts."""

    size: int
    why_not: str = ""
    is_final: bool = False


class _Job(NamedTuple):
    ref: Ref
    needs: tuple[tuple[Kind, str], ...]
    # Whether what lies there under its name is bad, and is to be replaced.
    again: bool


_Action = Callable[[Client], None]


class _Sender:
    """A queue and the thread that empties it; both are begun when something is first offered."""

    def __init__(self) -> None:
        self.jobs: queue.Queue[_Job | _Action | None] = queue.Queue(_MOST_WAITING)
        self.waiting = 0
        self.unsent = 0
        self.done = threading.Condition()
        self.thread: threading.Thread | None = None

    def offer(self, job: _Job | _Action) -> bool:
        with self.done:
            try:
                self.jobs.put_nowait(job)
            except queue.Full:
                self.unsent += 1
                client.count(Count.REMOTE_UNSENT)
                return False
            self.waiting += 1
            if self.thread is None:
                self.thread = threading.Thread(target=self._run_jobs, name="safecache-sender", daemon=True)
                self.thread.start()
                call_at_exit(_flush_at_exit)
            return True

    def _run_jobs(self) -> None:
        while (job := self.jobs.get()) is not None:
            sent = _try_send(job)
            with self.done:
                if sent.why_not:
                    self.unsent += not sent.is_final
                    client.count(Count.REMOTE_UNSENT)
                self.waiting -= 1
                self.done.notify_all()

    def end(self) -> None:
        """Send nothing more that was offered; wait for what is under way."""
        with suppress(queue.Empty):
            while True:
                self.jobs.get_nowait()
        if self.thread is not None:
            self.jobs.put(None)
            self.thread.join(_LONGEST_END)

    def flush(self, seconds: float) -> int:
        with self.done:
            self.done.wait_for(lambda: not self.waiting, seconds)
            return self.waiting + self.unsent


_sender: Part[_Sender] = Part(_Sender)


def enqueue(ref: Ref, needs: tuple[tuple[Kind, str], ...] = (), *, again: bool = False) -> None:
    """Queue the bundle for sending, unless the remote has it. ``again``: replace what the remote has."""
    _sender.now.offer(_Job(ref, needs, again))


def run_after_queue(action: _Action) -> bool:
    """Queue ``action``, called with the remote after all that was queued before. False if the queue is full."""
    return _sender.now.offer(action)


def _try_send(job: _Job | _Action) -> Sent:
    remote = client.get_background()
    if remote is None:
        return Sent(0)
    if not isinstance(job, _Job):
        with suppress(Unavailable):
            job(remote)
        return Sent(0)
    try:
        sent = send(remote, job.ref, job.needs, again=job.again)
    except Unavailable:
        return Sent(0, "the remote cannot be used now")
    except Exception as error:
        text, why = f"did not send {job.ref.kind.noun} {job.ref.key[:64]}", f"{type(error).__name__}: {error}"
        remedy = "Help: safecache copy here URL"
        events.report(Reason.REMOTE_UNAVAILABLE, text, why=why, cause="send", remedy=remedy, error=error)
        return Sent(0, str(error))
    if sent.is_final:
        text, why = f"did not send {job.ref.kind.noun} {job.ref.key[:64]} to the remote cache", sent.why_not
        events.report(Reason.REMOTE_UNAVAILABLE, text, why=why, cause=why, remedy="Other hosts compile it.")
    return sent


def send(
    remote: Client,
    ref: Ref,
    needs: tuple[tuple[Kind, str], ...] = (),
    *,
    files: tuple[File, ...] | None = None,
    again: bool = False,
) -> Sent:
    """Send a bundle, unless the remote has it; entries are joined with those of their key in the remote.

    ``files``: verified, with a ``ref`` as in a frame; None: the verified files of ``ref`` in its cache. ``needs``: what
    its user asks for next. ``again``: replace what the remote has. Raises Unavailable and OSError.
    """
    name, most = parcels.name_object(ref.kind, ref.key), remote.terms.most
    full = stores.make_prefix() + name
    joins = ref.kind in ENTRIES and not again
    if not joins and not again and remote.find_sizes([full]):
        return Sent(0)
    for _ in range(_MOST_TRIES):
        known = remote.read_unverified([full]).get(full) if joins else None
        ours = bundles.read_verified_files(ref) if files is None else files
        content = _join_parcel(wire.place_in_frame(ref) if files is None else ref, ours, needs, name, known, most)
        if isinstance(content, Sent):
            return content
        if joins and not isinstance(known, Oversized):
            if not remote.replace(full, content, known):
                continue
        else:
            remote.write(full, content)
        client.count(Count.REMOTE_SENT)
        return Sent(len(content))
    return Sent(0, "others were adding to it all the time")


def _join_parcel(
    ref: Ref,
    files: tuple[File, ...],
    needs: tuple[tuple[Kind, str], ...],
    name: str,
    known: bytes | Oversized | None,
    most: int,
) -> bytes | Sent:
    """Return the parcel to send, with what verifies of ``known``, the remote's; or why nothing is sent."""
    theirs = parcels.decode_object(known, name, ref, most) if isinstance(known, bytes) else None
    theirs = theirs if isinstance(theirs, Parcel) else Parcel(ref, ())
    ours = {file.name for file in files}
    if not files or (theirs.files and ours <= {file.name for file in theirs.files}):
        return Sent(0)
    joined = (*files, *(file for file in theirs.files if file.name not in ours))
    needed = tuple(dict.fromkeys((*needs, *theirs.needs)))[: parcels.MOST_NEEDED]
    content = parcels.encode_object(Parcel(ref, joined, needed), name)
    if content is None:
        return Sent(0, "there is no key to seal it", is_final=True)
    if len(content) > most:
        return Sent(0, f"it is larger than max_bytes of the remote, {units.write_size(most)}", is_final=True)
    return content


def flush(seconds: float | None = None) -> int:
    """Wait until the queue is sent, at most ``seconds`` or the remote's limit. Return how many may still be sent."""
    return _sender.now.flush(config.current().remote_flush if seconds is None else seconds)


def _flush_at_exit() -> None:
    begun = time.monotonic()
    left = flush()
    if left:
        took = f"{time.monotonic() - begun:.0f} s"
        events.report(
            Reason.REMOTE_UNAVAILABLE,
            "uploads to the remote cache did not finish",
            why=f"{units.write_count(left, 'is', 'are')} left after {took} (flush in its URL)",
            cause="flush",
            remedy="Other hosts will recompile them. Help: safecache copy here URL",
        )
