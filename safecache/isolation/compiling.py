"""Has the service compile what Triton's cache does not hold, and gives Triton what it would have found there."""

from __future__ import annotations

import errno
import itertools
import os
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any, NamedTuple, Protocol, TypeGuard

from safecache.code.triton_place import LIST
from safecache.entries import searches
from safecache.files import checks, opening
from safecache.isolation import attempts, client, crashes, early_start, encoding, known_bad, remarks, tuning
from safecache.isolation.attempts import Request
from safecache.isolation.limits import Limits
from safecache.reporting import events
from safecache.reporting.kinds import Count, Kind, Reason
from safecache.store import entry_files

__all__ = ["Made", "Manager", "in_process", "obtain", "stays"]

# A kernel has a dozen.
_MOST_FILES = 64
_REMEDY = "It is compiled in this process, which a crash of the compiler would end."


class Manager(Protocol):
    """Triton's cache manager, ours or one that stands before it."""

    def put(self, data: bytes, filename: str) -> str:
        """Keep a file, and tell where to read it."""

    def put_group(self, filename: str, group: dict[str, str]) -> object:
        """Keep the list of the files."""


class Made(NamedTuple):
    """The kernel's files by name, and where to read them; ``times``: of the stages, as knobs.CompileTimes has them."""

    group: dict[str, str]
    times: dict[str, Any]


def in_process(what: str, why: str, error: BaseException | None = None) -> None:
    """Report, once for each reason, that a compile stays in this process."""
    events.report(Reason.NOT_ISOLATED, f"{what} is not isolated: {why}.", cause=why, remedy=_REMEDY, error=error)


def stays(kernel: str) -> bool:
    """Whether a setting asks for the compile itself, in this process; this is reported."""
    knobs = sys.modules["triton"].knobs.compilation
    variable = next((variable for name, variable in early_start.OF_THE_COMPILE.items() if getattr(knobs, name)), None)
    if variable is not None:
        in_process(f"the kernel {kernel}", f"{variable} is set")
    return variable is not None


def obtain(request: Request, root: str, limits: Limits, manager: Manager) -> Made | None:
    """What was compiled of it, which the cache has now; None if it is to be compiled in this process.

    That is so too where Triton finds fault with the kernel: the error is then raised as without us. ``root``: Triton's
    cache directory. Raises TritonCompileCrash, and Triton's PTXASError, which costs no second compile.
    """
    note = known_bad.find(root, request.hash, timeout=limits.timeout, memory=limits.memory)
    if note is not None:
        raise crashes.skipped(request.hash, note)
    # While it starts, the kernel is encoded.
    client.current().start()
    try:
        attempt = _attempt(request, root, limits)
        with closing(attempt):
            return _taken(request, root, limits, manager, attempt)
    except encoding.FrontEndError:
        return None
    except encoding.CannotTravel as error:
        in_process(f"the kernel {request.source.name}", str(error), error)
    except (client.ServiceUnavailable, attempts.UnusableError) as error:
        in_process("a compile of Triton's", str(error), error)
    return None


def _attempt(request: Request, root: str, limits: Limits) -> attempts.Attempt:
    """Of this compile; where it is one of a tuning, with the others of that, which then have been made ahead."""
    under_way = tuning.current()
    if under_way is None:
        return attempts.run(request, limits)
    made = under_way.attempts.pop(request.key, None)
    if made is None:
        others = _others(under_way, request, root, limits)
        made, further = attempts.run_together(request, others, limits)
        under_way.attempts.update(further)
    return made


def _others(under_way: tuning.Tuning, request: Request, root: str, limits: Limits) -> Iterator[Request]:
    """What else the tuning will have to compile."""
    known = {request.key}
    for asked in under_way.asked():
        other = Request(*asked, metadata=f"{asked[0].name[:150]}.json")
        if other.key not in known and not _is_there(other, root, limits):
            yield other
        known.add(other.key)


def _is_there(request: Request, root: str, limits: Limits) -> bool:
    """Whether the cache has it, or a note that it crashes."""
    manager = sys.modules["triton.compiler.compiler"].get_cache_manager(request.hash)
    with searches.only_looking():
        if manager.get_group(request.metadata) is not None:
            return True
    return known_bad.find(root, request.hash, timeout=limits.timeout, memory=limits.memory) is not None


def _taken(request: Request, root: str, limits: Limits, manager: Manager, attempt: attempts.Attempt) -> Made | None:
    outcome, directory = attempt.outcome, attempt.directory
    if not _is_answer(outcome.reply):
        raise attempts.UnusableError("the answer of the process that compiled it makes no sense")
    found = crashes.diagnosed(outcome, directory)
    if found is not None:
        raise crashes.confirmed(request, root, attempt.job, limits, found, outcome, directory)
    reply = outcome.reply or {}
    if "error" in reply:
        _raise_of_ptxas(reply)
        return None
    contents = _contents(request, reply, directory)
    remarks.repeat(reply)
    group = {name: manager.put(content, name) for name, content in contents.items()}
    manager.put_group(list(group)[-1], group)
    events.took(Count.ISOLATED, outcome.seconds)
    return Made(group, _times(reply))


def _is_answer(reply: dict[str, Any] | None) -> bool:
    """Whether an error in it is one as job.run() replies."""
    error = (reply or {}).get("error", {"type": "", "message": ""})
    return isinstance(error, dict) and all(isinstance(error.get(name), str) for name in ("type", "message"))


def _raise_of_ptxas(reply: dict[str, Any]) -> None:
    """If that is the error, with what Triton prints of it: the PTX, among others."""
    error = reply["error"]
    errors = sys.modules["triton.runtime.errors"]
    if error["type"].rpartition(".")[2] == errors.PTXASError.__name__:
        remarks.repeat(reply)
        shown = str(errors.PTXASError(""))
        raise errors.PTXASError(error["message"].removeprefix(shown))


def _contents(request: Request, reply: dict[str, Any], directory: str) -> dict[str, bytes]:
    """What the worker has written, the list of the kernel's files last. Raises UnusableError."""
    if reply.get("key") != request.hash:
        raise attempts.UnusableError("the process that compiled it came to another cache key")
    folder, metadata = reply.get("folder"), request.metadata or str(reply.get("metadata"))
    if not _is_plain(folder) or reply.get("metadata") != metadata:
        raise attempts.UnusableError("the process that compiled it tells of other files")
    try:
        contents = _read_all(os.path.join(directory, folder))
        contents[metadata] = contents.pop(metadata)
    except (OSError, checks.UnusableEntry, KeyError) as error:
        raise attempts.UnusableError(f"what it has made cannot be read: {error}") from error
    return contents


def _read_all(folder: str) -> dict[str, bytes]:
    """The files of a kernel by name, sorted. Raises OSError and UnusableEntry for what no kernel has."""
    with os.scandir(folder) as found:
        names = sorted(item.name for item in itertools.islice(found, _MOST_FILES + 1))
    if len(names) > _MOST_FILES:
        raise OSError(errno.EFBIG, f"it has more than {_MOST_FILES} files", folder)
    contents = {}
    left = entry_files.largest(Kind.KERNEL)  # for all of them
    for name in names:
        # The list of the group is made anew, for where the files are now.
        if not name.startswith(LIST):
            check = checks.check_up_to(left)
            contents[name] = opening.read_regular(os.path.join(folder, name), check, flags=os.O_NOFOLLOW, limit=left)
            left -= len(contents[name])
    return contents


def _times(reply: dict[str, Any]) -> dict[str, Any]:
    """For listeners; zeros for what is no time."""
    told = reply.get("times")
    times = told if isinstance(told, dict) else {}
    stages = times.get("lowering_stages")
    pairs = [each for each in stages if isinstance(each, list) and len(each) == 2] if isinstance(stages, list) else []
    names = ("ir_initialization", "store_results")
    return {name: _microseconds(times.get(name)) for name in names} | {
        "lowering_stages": [(str(stage), _microseconds(time)) for stage, time in pairs]
    }


def _microseconds(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _is_plain(name: Any) -> TypeGuard[str]:
    return isinstance(name, str) and os.path.basename(name) == name and name not in ("", os.curdir, os.pardir)
