"""Has the service compile kernels that Triton's cache lacks, and gives Triton the files that it would have made."""

from __future__ import annotations

import errno
import itertools
import os
import re
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeGuard

from safecache import compiles
from safecache.code.triton_place import LIST
from safecache.files import opening
from safecache.isolation import attempts, client, crashes, early_start, encoding, limits, protocol, tuning
from safecache.isolation.attempts import Request
from safecache.isolation.limits import Limits
from safecache.places import layout
from safecache.reporting import events
from safecache.reporting.kinds import Count, Kind, Reason
from safecache.store import entry_files
from safecache.tiers import layers

__all__ = ["Ahead", "Made", "Manager", "ahead", "in_process", "obtain", "stays"]

# A kernel has a dozen.
_MOST_FILES = 64
_REMEDY = "It is compiled in this process, which a crash of the compiler would end."


class Manager(Protocol):
    """Triton's cache manager, ours or one that wraps it."""

    def put(self, data: bytes, filename: str) -> str:
        """Store a file and return its path."""

    def put_group(self, filename: str, group: dict[str, str]) -> object:
        """Store the list of the files."""


class Made(NamedTuple):
    """The paths of the kernel's files by name; ``times``: those of the stages in µs, as in knobs.CompileTimes."""

    group: dict[str, str]
    times: dict[str, Any]


def in_process(what: str, why: str, error: BaseException | None = None) -> None:
    """Report, once per reason, that ``what`` is compiled in this process."""
    events.report(Reason.NOT_ISOLATED, f"{what} is not isolated: {why}.", cause=why, remedy=_REMEDY, error=error)


def stays(kernel: str) -> bool:
    """Whether a setting requires the compile to run in this process; if so, that is reported."""
    knobs = sys.modules["triton"].knobs.compilation
    variable = next((variable for name, variable in early_start.OF_THE_COMPILE.items() if getattr(knobs, name)), None)
    if variable is not None:
        in_process(f"the kernel {kernel}", f"{variable} is set")
    return variable is not None


def obtain(request: Request, root: str, limits: Limits, manager: Manager) -> Made | None:
    """The compiled kernel, now in the cache; None if it is to be compiled in this process.

    None also if Triton rejects the kernel, so that Triton itself raises the error here. ``root``: Triton's cache
    directory. Raises TritonCompileCrash, and Triton's PTXASError, which needs no second compile.
    """
    note = crashes.find(root, request.hash, timeout=limits.timeout, memory=limits.memory)
    if note is not None:
        raise crashes.skipped(request.hash, note)
    # The kernel is encoded while the server starts.
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
    """The attempt at this compile. During a tuning, all its other configurations are compiled ahead with it."""
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
    """The other compiles that the tuning will need."""
    known = {request.key}
    for asked in under_way.asked():
        other = Request(*asked, metadata=f"{asked[0].name[:150]}.json")
        if other.key not in known and not _is_there(other, root, limits):
            yield other
        known.add(other.key)


def _is_there(request: Request, root: str, limits: Limits) -> bool:
    """Whether the cache holds the kernel, or a note that its compile crashes."""
    manager = sys.modules["triton.compiler.compiler"].get_cache_manager(request.hash)
    with compiles.scope(only_looks=True):
        if manager.get_group(request.metadata) is not None:
            return True
    return crashes.find(root, request.hash, timeout=limits.timeout, memory=limits.memory) is not None


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
    protocol.repeat(reply)
    group = {name: manager.put(content, name) for name, content in contents.items()}
    manager.put_group(list(group)[-1], group)
    events.count(Count.ISOLATED, seconds=outcome.seconds)
    return Made(group, _times(reply))


def _is_answer(reply: dict[str, Any] | None) -> bool:
    """Whether the error in the reply, if any, has the form of job.run()."""
    error = (reply or {}).get("error", {"type": "", "message": ""})
    return isinstance(error, dict) and all(isinstance(error.get(name), str) for name in ("type", "message"))


def _raise_of_ptxas(reply: dict[str, Any]) -> None:
    """Raise Triton's PTXASError if that is the error, after printing what Triton prints, such as the PTX."""
    error = reply["error"]
    errors = sys.modules["triton.runtime.errors"]
    if error["type"].rpartition(".")[2] == errors.PTXASError.__name__:
        protocol.repeat(reply)
        shown = str(errors.PTXASError(""))
        raise errors.PTXASError(error["message"].removeprefix(shown))


def _contents(request: Request, reply: dict[str, Any], directory: str) -> dict[str, bytes]:
    """The files that the worker wrote, the kernel's metadata last. Raises UnusableError."""
    if reply.get("key") != request.hash:
        raise attempts.UnusableError("the process that compiled it came to another cache key")
    folder, metadata = reply.get("folder"), request.metadata or str(reply.get("metadata"))
    if not _is_plain(folder) or reply.get("metadata") != metadata:
        raise attempts.UnusableError("the process that compiled it tells of other files")
    try:
        contents = _read_all(os.path.join(directory, folder))
        contents[metadata] = contents.pop(metadata)
    except (OSError, opening.UnusableEntry, KeyError) as error:
        raise attempts.UnusableError(f"what it has made cannot be read: {error}") from error
    return contents


def _read_all(folder: str) -> dict[str, bytes]:
    """A kernel's files by name, sorted. Raises OSError, and UnusableEntry for files that no kernel has."""
    with os.scandir(folder) as found:
        names = sorted(item.name for item in itertools.islice(found, _MOST_FILES + 1))
    if len(names) > _MOST_FILES:
        raise OSError(errno.EFBIG, f"it has more than {_MOST_FILES} files", folder)
    contents = {}
    left = entry_files.max_entry_size(Kind.KERNEL)  # for all of them
    for name in names:
        # The group's list is rewritten with the files' new paths.
        if not name.startswith(LIST):
            check = opening.check_up_to(left)
            contents[name] = opening.read_regular(os.path.join(folder, name), check, flags=os.O_NOFOLLOW, limit=left)
            left -= len(contents[name])
    return contents


def _times(reply: dict[str, Any]) -> dict[str, Any]:
    """The times for Triton's listeners, in µs; 0 for invalid values."""
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


# What Triton takes from the text: IRSource.parse_options, 3.6 to 3.9.
# And what it calls the kernel: its first function that is not private.
_ENTRY = re.compile(r'\btt\.func\s+(?:public\s+)?@"?([^\s"(]+)')
_WARPS, _CTAS = re.compile(r'"ttg\.num-warps" = (\d+)'), re.compile(r'"ttg\.num-ctas" = (\d+)')
_PARSED = ("ttir", "ttgir", "glir")


class Ahead(NamedTuple):
    """A compile to be made before Triton reads the IR file. ``directory``: where the kernel's files belong."""

    request: attempts.Request
    variables: Any
    directory: str
    manager: Manager

    @property
    def name(self) -> str:
        """What Triton calls the kernel."""
        found = _ENTRY.search(self.request.source.src)
        return f"@{found[1]}" if found is not None else str(self.request.source.name)

    def make(self, *, tuning: bool) -> Made | None:
        """Compile the kernel into Triton's cache; None if it cannot be isolated, so that Triton compiles it here.

        Raises TritonCompileCrash, and Triton's PTXASError.
        """
        return obtain(self.request, os.path.dirname(self.directory), limits.current(tuning=tuning), self.manager)


def ahead(path: str, target: Any, options: dict[str, Any] | None, variables: Any) -> Ahead | None:
    """The compile to make before Triton reads ``path``; None if it is cached, or cannot be isolated."""
    compiler = sys.modules["triton.compiler.compiler"]
    source = _unparsed(compiler, path)
    if source is None:
        return None
    backend = compiler.make_backend(target or compiler.driver.active.get_current_target())
    parsed = backend.parse_options({**(options or {}), **_stated(source)})
    variables = compiler.get_cache_invalidating_env_vars() if variables is None else variables
    key = sys.modules["triton.runtime.cache"].get_cache_key(source, backend, parsed, variables)
    request = attempts.Request(source, backend, parsed, key, metadata="")
    manager = compiler.get_cache_manager(request.hash)
    directory = getattr(getattr(manager, "_file_cache_manager", manager), "cache_dir", "")
    # Whoever stored the group has parsed the file.
    if not directory or _is_group_there(directory) or stays(source.name):
        return None
    return Ahead(request, variables, directory, manager)


def _is_group_there(directory: str) -> bool:
    places = [directory, *(place for place, _ in layers.iter_lower_paths(directory, os.path.dirname(directory)))]
    return any(name.startswith(LIST) for place in places for name in _names_in(place))


def _names_in(place: str) -> list[str]:
    try:
        return layout.list_entries(place)
    except OSError:
        return []  # reported by the lookup


def _unparsed(compiler: Any, path: str) -> Any:
    """An IRSource without the result of parsing; None for a file that is not parsed, or cannot be read."""
    source = object.__new__(compiler.IRSource)
    source.path, source.ext = path, Path(path).suffix[1:]
    if source.ext not in _PARSED:
        return None
    try:
        source.src = Path(path).read_text()
    except (OSError, ValueError):
        return None  # Triton raises that itself
    languages = sys.modules["triton.backends.compiler"].Language
    source.language = languages.GLUON if source.ext == "glir" else languages.TRITON
    source.name, source.signature = Path(path).name, {}
    return source


def _stated(source: Any) -> dict[str, int]:
    found = {"num_warps": _WARPS.search(source.src), "num_ctas": _CTAS.search(source.src)}
    return {} if source.ext == "ttir" else {name: int(match[1]) for name, match in found.items() if match}
