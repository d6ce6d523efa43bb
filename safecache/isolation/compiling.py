"""Has the service compile what Triton's cache does not hold, and gives Triton what it would have found there."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, Protocol, TypeGuard

from safecache import events, files, private_directory, store
from safecache.isolation import client, crashes, encoding, known_bad, remarks
from safecache.isolation.limits import Limits
from safecache.reasons import Count, Reason
from safecache.triton_place import LIST

__all__ = ["Manager", "Request", "in_process", "obtain", "stays"]

_REMEDY = "It is compiled in this process, which a crash of the compiler would end."


# Knobs for which a hit is not what is wanted.
_OF_THE_COMPILE = {
    "always_compile": "TRITON_ALWAYS_COMPILE",
    "override": "TRITON_KERNEL_OVERRIDE",
    "dump_ir": "TRITON_KERNEL_DUMP",
}


class Manager(Protocol):
    """Triton's cache manager, ours or one that stands before it."""

    def put(self, data: bytes, filename: str) -> str:
        """Keep a file, and tell where to read it."""

    def put_group(self, filename: str, group: dict[str, str]) -> object:
        """Keep the list of the files."""


class Request(NamedTuple):
    """What triton.compile() is about to look up: ``key`` is its cache key, ``metadata`` the file that it looks for.

    "" if that is not known.
    """

    source: Any
    backend: Any
    options: Any
    key: str
    metadata: str

    @property
    def hash(self) -> str:
        """What the kernel's directory is named after."""
        return hashlib.sha256(self.key.encode()).hexdigest()


def in_process(what: str, why: str, error: BaseException | None = None) -> None:
    """Report, once for each reason, that a compile stays in this process."""
    events.report(Reason.NOT_ISOLATED, f"{what} is not isolated: {why}.", cause=why, remedy=_REMEDY, error=error)


def stays(kernel: str) -> bool:
    """Whether a setting asks for the compile itself, in this process; this is reported."""
    knobs = sys.modules["triton"].knobs.compilation
    variable = next((variable for name, variable in _OF_THE_COMPILE.items() if getattr(knobs, name)), None)
    if variable is not None:
        in_process(f"the kernel {kernel}", f"{variable} is set")
    return variable is not None


def obtain(request: Request, root: str, limits: Limits, manager: Manager) -> dict[str, str] | None:
    """The kernel's files by name, and where to read them; None if it is to be compiled in this process.

    That is so too where Triton finds fault with the kernel: the error is then raised as without us. ``root``: Triton's
    cache directory. Raises TritonCompileCrash, and Triton's PTXASError, which costs no second compile.
    """
    note = known_bad.find(root, request.hash, timeout=limits.timeout, memory=limits.memory)
    if note is not None:
        raise crashes.skipped(request.hash, note)
    try:
        with _directory() as directory:
            return _compiled(request, root, limits, manager, directory)
    except encoding.FrontEndError:
        return None
    except encoding.CannotTravel as error:
        in_process(f"the kernel {request.source.name}", str(error), error)
    except (client.ServiceUnavailable, _UnusableError) as error:
        in_process("a compile of Triton's", str(error), error)
    return None


class _UnusableError(Exception):
    """What a worker has left is not the kernel, or there is no place for it. The text says why."""


@contextmanager
def _directory() -> Iterator[str]:
    with ExitStack() as stack:
        try:
            directory = stack.enter_context(private_directory.made())
        except OSError as error:
            raise _UnusableError(str(error)) from error
        yield directory


def _compiled(request: Request, root: str, limits: Limits, manager: Manager, directory: str) -> dict[str, str] | None:
    job = _job(request)
    outcome = client.current().run(job, directory, timeout=limits.timeout, memory=limits.memory)
    if not _is_answer(outcome.reply):
        raise _UnusableError("the answer of the process that compiled it makes no sense")
    found = crashes.diagnosed(outcome, directory, request.backend.target.backend)
    if found is not None:
        raise crashes.confirmed(request, root, job, limits, found, outcome, directory)
    reply = outcome.reply or {}
    if "error" in reply:
        _raise_of_ptxas(reply)
        return None
    contents = _contents(request, reply, directory)
    remarks.repeat(reply)
    group = {name: manager.put(content, name) for name, content in contents.items()}
    manager.put_group(list(group)[-1], group)
    events.took(Count.ISOLATED, outcome.seconds)
    return group


def _is_answer(reply: dict[str, Any] | None) -> bool:
    """Whether an error in it is one as job.run() replies."""
    error = (reply or {}).get("error", {"type": "", "message": ""})
    return isinstance(error, dict) and all(isinstance(error.get(name), str) for name in ("type", "message"))


def _job(request: Request) -> dict[str, Any]:
    target = request.backend.target
    return {
        "source": encoding.encode(request.source, target, vars(request.options)),
        "target": [target.backend, target.arch, target.warp_size],
        "key": request.key,
        "triton_key": sys.modules["triton.runtime.cache"].triton_key(),
        "backend_key": request.backend.hash(),
    }


def _raise_of_ptxas(reply: dict[str, Any]) -> None:
    """If that is the error, with what Triton prints of it: the PTX, among others."""
    error = reply["error"]
    errors = sys.modules["triton.runtime.errors"]
    if error["type"].rpartition(".")[2] == errors.PTXASError.__name__:
        remarks.repeat(reply)
        shown = str(errors.PTXASError(""))
        raise errors.PTXASError(error["message"].removeprefix(shown))


def _contents(request: Request, reply: dict[str, Any], directory: str) -> dict[str, bytes]:
    """What the worker has written, the list of the kernel's files last. Raises _UnusableError."""
    if reply.get("key") != request.hash:
        raise _UnusableError("the process that compiled it came to another cache key")
    folder, metadata = reply.get("folder"), request.metadata or str(reply.get("metadata"))
    if not _is_plain(folder) or reply.get("metadata") != metadata:
        raise _UnusableError("the process that compiled it tells of other files")
    try:
        paths = {name: os.path.join(directory, folder, name) for name in os.listdir(os.path.join(directory, folder))}
        # The list of the group is made anew, for where the files are now.
        contents = {name: _read(path) for name, path in sorted(paths.items()) if not name.startswith(LIST)}
        contents[metadata] = contents.pop(metadata)
    except (OSError, store.UnusableEntry, KeyError) as error:
        raise _UnusableError(f"what it has made cannot be read: {error}") from error
    return contents


def _read(path: str) -> bytes:
    return files.read_regular(path, store.check_regular, flags=os.O_NOFOLLOW)


def _is_plain(name: Any) -> TypeGuard[str]:
    return isinstance(name, str) and os.path.basename(name) == name and name not in ("", os.curdir, os.pardir)
