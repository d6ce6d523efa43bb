"""How a file system behaves, tried: what publishing an entry and locking a build rely on.

In a directory that is made for it, and removed.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping

from safecache.doctor import finding, places
from safecache.doctor.finding import Finding
from safecache.doctor.places import Place
from safecache.files import folders, mounts

__all__ = ["check"]

_PREFIX = ".safecache-probe-"
# Seconds between the clock of a file server and ours. What was used within an hour is in use.
_MOST_SKEW = 300.0
_CREATE = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC


def check(environ: Mapping[str, str]) -> Iterator[Finding]:
    """What does not work on each file system that one of the directories lies on."""
    for those in places.by(lambda path: os.stat(path).st_dev, places.of(environ)):
        for place in those:
            directory = places.nearest(place.path)
            if os.path.isdir(directory) and os.access(directory, os.W_OK | os.X_OK, effective_ids=True):
                yield from _tried(place, directory)
                break


def _tried(place: Place, directory: str) -> Iterator[Finding]:
    where = f"{directory}, where {place.noun} is to be," if directory != place.path else str(place)
    try:
        with folders.scratch(directory, _PREFIX) as probe:
            found = [each for step in _STEPS for each in step(probe.path, where, place.variable)]
    except OSError as error:
        yield finding.info("not-probed", f"{where} could not be tried out: {error.strerror}.")
        return
    mount = mounts.mount_of(directory)
    yield from found or [finding.ok("behaviour", f"Renames, locks and syncs work on {mount or directory}.")]


def _write(probe: str, where: str, variable: str) -> Iterator[Finding]:
    descriptor = os.open(os.path.join(probe, "synced"), _CREATE, 0o600)
    try:
        os.write(descriptor, bytes(4096))
        os.fsync(descriptor)
        skew = os.fstat(descriptor).st_mtime - time.time()
    except OSError as error:
        evidence = f"On {where} a file cannot be written and synced: {error.strerror}."
        yield finding.error("no-sync", evidence, f"export {variable}=DIR  # on another file system")
        return
    finally:
        os.close(descriptor)
    if abs(skew) > _MOST_SKEW:
        evidence = f"The clock of {where} is {skew:+.0f} s off this machine's: what is in use can be taken for old."
        yield finding.warning("clock-skew", evidence, "timedatectl set-ntp true  # on both")


def _rename(probe: str, where: str, variable: str) -> Iterator[Finding]:
    old, new = os.path.join(probe, "old"), os.path.join(probe, "new")
    for path, content in ((old, "old"), (new, "new")):
        with open(path, "w", encoding="ascii") as file:
            file.write(content)
    try:
        os.rename(new, old)
        with open(old, encoding="ascii") as file:
            wrong = None if file.read() == "new" else "the file that was there is still there"
    except OSError as error:
        wrong = error.strerror
    if wrong is not None:
        evidence = f"On {where} a file cannot be renamed over another: {wrong}. So nothing can be published."
        yield finding.error("no-rename", evidence, f"export {variable}=DIR  # on another file system")


def _lock(probe: str, where: str, variable: str) -> Iterator[Finding]:
    path = os.path.join(probe, "lock")
    first, second = os.open(path, _CREATE, 0o600), os.open(path, _CREATE, 0o600)
    try:
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        wrong: str | None = "it is granted to two at once"
        fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        wrong = None
    except OSError as error:
        wrong = error.strerror
    finally:
        os.close(first)
        os.close(second)
    if wrong is not None:
        evidence = f"On {where} a lock cannot be relied on: {wrong}. Processes then build the same kernels at once."
        yield finding.warning("no-locks", evidence, f"export {variable}=DIR  # on another file system")


def _link(probe: str, where: str, _: str) -> Iterator[Finding]:
    path = os.path.join(probe, "name")
    with open(path, "wb"):
        pass
    try:
        os.link(path, os.path.join(probe, "other"))
    except OSError as error:
        evidence = f"On {where} there are no hard links ({error.strerror}): locks do for them."
        yield finding.info("no-hard-links", evidence)


_STEPS: tuple[Callable[[str, str, str], Iterator[Finding]], ...] = (_write, _rename, _lock, _link)
