"""Finds the libraries that Inductor builds, verified, in a tier, or builds them: alone, if others can write there."""

from __future__ import annotations

import copy
import itertools
import logging
import os
import re
import shlex
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from safecache import compiles
from safecache.built_code import generated, sources
from safecache.built_code.generated import find_root
from safecache.errors import EntryRefusedError
from safecache.fs import folders, opening, ownership, private_directory, temporaries
from safecache.places.layout import LOADED, CodeFile
from safecache.places.refs import locate
from safecache.ports import Requested, plugs, tell
from safecache.reporting import events
from safecache.reporting.kinds import Kind, Reason
from safecache.session import Part, inherit
from safecache.settings import config
from safecache.store import attestations, bundles, directories, entry_files, gate, manifests
from safecache.tiers import directory_faults

__all__ = [
    "Build",
    "are_attested",
    "attach_inputs",
    "check_inputs",
    "current_build",
    "find_signal",
    "is_dispensable",
    "is_exposed",
    "mark_loaded",
    "publish_output",
    "redirect_command",
    "repeat_if_killed",
]

_SCRATCH = "CxxBuild"
# As torch ends the name of the source that the library of a kernel is named after.
_MAIN = ".main.cpp"

# GCC's precompiled headers can lie anywhere, Clang's only beside their sources.
_PRECOMPILED, _IMMOVABLE = ".gch", ".pch"

# The whole content of a header that torch precompiles: it includes one of torch's own.
_INCLUDES = re.compile(rb"#include <torch/[a-zA-Z0-9_]+(/[a-zA-Z0-9_]+)*\.h>\s*")

_headers: Part[dict[str, str]] = Part(dict, inherit)

T = TypeVar("T")

# What the drivers of GCC and of Clang print when the compiler proper was ended.
_PRINTED = re.compile(r"error: (?:(.+) signal terminated program|unable to execute command: (.+))")
# Those by which a user, or whoever stops a server, ends all of its processes.
_WANTED = {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM}
_PAUSE = 0.2  # seconds


def current_build() -> Build:
    """Return this thread's search for libraries; outside of any search, one that verifies nothing."""
    return compiles.current.build or Build()


class Build:
    """Search of one thread for libraries, and the build of those that no tier has.

    ``verifies``: verify what is found, and attest what is built. ``error``: the last error of the search or a build.
    """

    def __init__(self, *, verifies: bool = False) -> None:
        self.error: Exception | None = None
        self._verifies = verifies
        self._source = ""
        # Those that no tier has.
        self._absent: set[str] = set()

    def note_source(self, path: str) -> None:
        """Note that a source was written or found at ``path``: is_found() tells of its library."""
        if path.endswith(_MAIN):
            self._source = path

    def is_found(self) -> bool:
        """Tell whether the library is there and attested, or in a lower tier, from which it is copied then."""
        if not self._source:
            return False
        path = self._source.removesuffix(".cpp") + ".so"
        root = find_root(path)
        return gate.is_attested(CodeFile(path, root)) or _is_fetched(path, root)

    def settle_target(self, path: str) -> None:
        """Quarantine an unattested file at ``path``, as torch asks for it, or copy one from a lower tier.

        Raises directory_faults.Unsettled if it cannot be quarantined or verified; EntryRefusedError in strict mode.
        """
        # A precompiled header of 150 MB is verified when something is built with it.
        if not self._verifies or is_dispensable(path):
            return
        root = find_root(path)
        try:
            is_there = gate.quarantine_unattested(CodeFile(path, root))
            # The marker that a probe could be loaded goes with its probe, and if nothing attests the marker.
            if is_there and os.path.lexists(path + LOADED):
                gate.quarantine_unattested(CodeFile(path + LOADED, root))
            elif os.path.lexists(path + LOADED):
                entry_files.quarantine(path + LOADED, root, Reason.UNSEALED)
        except directory_faults.Unsettled as error:
            self.error = error
            raise
        tell(Requested(locate(Kind.NATIVE_CODE, path, root)))
        if not is_there and path not in self._absent and not _is_fetched(path, root):
            self._absent.add(path)

    def run(self, make: Callable[[], Any], builder: Any) -> Any:
        """Return what ``make`` does, which has the builder build its library; None if it was built privately instead.

        The build is out of others' reach, and a record attests the library. Raises what the build does, and
        EntryRefusedError if an input was replaced.
        """
        if not self._verifies:
            return make()
        sources_of_parent = getattr(builder, "_safecache_sources", None)
        attestations.import_known(sources_of_parent or {})
        with compiles.override_scope(build=None):
            path = builder.get_target_file_path()
            root = find_root(path)
            result = None
            privately = is_exposed(path) and _build_privately(builder, path, root)
            if not privately:
                command = shlex.split(builder.get_command_line())
                if sources_of_parent is not None:
                    check_inputs(command, path, root, generated.find_headers_folder() or "")
                if is_dispensable(path) and command.count(path) == 1:
                    self._make_unseen(builder, command, path, root)
                else:
                    result = self._make(make, builder)
                    gate.attest_file(CodeFile(path, root))
        directories.propagate_file(CodeFile(path))
        return result

    def _make_unseen(self, builder: Any, command: list[str], path: str, root: str) -> None:
        """Build a precompiled header, which torch looks for without a lock: it appears whole, and after its record."""
        unseen = copy.copy(builder)
        with temporaries.reserve_temporary(path) as temporary:
            unseen.get_command_line = lambda: shlex.join([temporary if word == path else word for word in command])
            self._make(unseen.build, builder)
            gate.attest_file(CodeFile(path, root), made_at=temporary)
            with folders.open_parent(root, path) as (folder, name):
                folder.rename(os.path.basename(temporary), folder, name)

    def _make(self, make: Callable[[], Any], builder: Any) -> Any:
        try:
            return make()
        except Exception as error:
            self.error = error
            # Remove the directory that the compiler ran in.
            with suppress(OSError), folders.open_subdirectory(builder._output_dir) as folder:
                folder.rmdir(f"{builder._name}_{_SCRATCH}")
            raise


def are_attested(paths: Iterable[str]) -> bool:
    """Tell whether all of these files exist and are attested. Precompiled headers only have to exist."""
    return all(map(_is_attested, paths))


def _is_attested(path: str) -> bool:
    # A precompiled header of 150 MB is verified when something is built with it.
    return os.path.isfile(path) if is_dispensable(path) else gate.is_attested(CodeFile(path, find_root(path)))


def attach_inputs(builder: Any, sources: str | list[str], options: Any) -> None:
    """Attach the digests of its sources and precompiled header to torch's ``builder``, for a compile worker."""
    header = getattr(options, "precompiled_header", None)
    paths = [sources] if isinstance(sources, str) else sources
    builder._safecache_sources = attestations.export_known([*paths, *([header] if header else [])])


def mark_loaded(path: str, root: str) -> None:
    """Attest the empty marker that torch is about to write beside ``path``: it states that this probe can be loaded."""
    marker = path + LOADED
    gate.attest_file(CodeFile(marker, root), content=b"")
    directories.send_content(CodeFile(marker), b"", record=manifests.make_record(CodeFile(marker, root), b"", {}))
    with suppress(OSError):  # torch writes it next, and fails as in stock
        entry_files.publish(marker, b"", root)
    plugs.tiers.keep(locate(Kind.NATIVE_CODE, path, root), again=True)


def _is_fetched(path: str, root: str) -> bool:
    """Copy the library, with its marker, from a tier below the cache; return whether it is there now, and attested."""
    found = bundles.fetch(locate(Kind.NATIVE_CODE, path, root))
    return found is not None and gate.quarantine_unattested(CodeFile(path, root))


def _build_privately(builder: Any, path: str, root: str) -> bool:
    """Build ``path`` in a private directory and publish it; False, and reported, if the builder is of unknown form."""
    with private_directory.create_temporary() as directory:
        moved = redirect_command(shlex.split(builder.get_command_line()), path, root, directory)
        if moved is not None:
            private = copy.copy(builder)
            private._name, private._output_dir = "build", directory
            private.get_command_line = lambda: shlex.join(moved)
            try:
                private.build()
            except Exception:
                if not is_dispensable(path):
                    raise
                return True
            if publish_output(directory, path, root):
                return True
    message, remedy = f"built {path} where others can write", "Help: build in a directory that only you can write to"
    events.report(Reason.STOOD_DOWN, message, why="safecache does not know its inputs", cause=root, remedy=remedy)
    return False


def is_exposed(target: str) -> bool:
    """Tell whether others could replace files beside ``target`` while it is built."""
    return ownership.find_exposure(os.path.dirname(target)) is not None


def is_dispensable(target: str) -> bool:
    """Tell whether ``target`` is a precompiled header, of some hundred megabytes: a build works without it."""
    return target.endswith((_PRECOMPILED, _IMMOVABLE))


def check_inputs(stock: list[str], target: str, root: str, headers: str) -> None:
    """Ensure that the ``stock`` command line only reads attested files below the cache ``root`` and ``headers``.

    ``headers``: where torch keeps those that it precompiles. An unattested precompiled header is quarantined, so that
    the compiler reads the header itself. Raises EntryRefusedError for any other unattested file, and OSError for one
    that cannot be read.
    """
    # Not the compiler, the first word, which may have just been installed in the cache.
    for option, word in itertools.pairwise(stock):
        if option == "-include" and word.startswith(os.path.join(headers, "")):
            _check_header(word)
        elif word != target and word.startswith(os.path.join(root, "")) and not os.path.isdir(word):
            _check_attested(word, root)


def _check_header(path: str) -> None:
    directory = os.path.dirname(path)
    if not attestations.is_expected(path):
        # Made before the hooks were on, or in a process that did not report it: torch makes it once per process.
        with suppress(opening.UnusableEntry):
            content = entry_files.read_unverified_entry(path, entry_files.max_entry_size(Kind.SOURCE))
            if _INCLUDES.fullmatch(content):
                attestations.attest_in_process(path, content)
    _check_attested(path, directory)
    for compiled in (path + _PRECOMPILED, path + _IMMOVABLE):
        # The compiler may be able to read a moment later what cannot be read now.
        if os.path.lexists(compiled) and gate.quarantine_unattested(CodeFile(compiled, directory)):
            _check_attested(compiled, directory)


def _check_attested(path: str, root: str) -> None:
    if gate.judge_file(CodeFile(path, root)) is not None:
        raise EntryRefusedError(f"safecache: {path} was replaced while something was built of it.")


def redirect_command(stock: list[str], target: str, root: str, directory: str) -> list[str] | None:
    """Return the ``stock`` command line, with what it reads and writes below the cache ``root`` moved to ``directory``.

    None if it has an unknown form. Raises EntryRefusedError for an input that was replaced, and OSError for one that is
    gone or cannot be copied.
    """
    if stock.count(target) != 1 or target.endswith(_IMMOVABLE):
        return None
    words: list[str] = []
    for option, word in itertools.pairwise(["", *stock]):
        ours: str | None = word
        if word == target:
            ours = _make_inner_path(directory, target)
        elif option == "-include" and is_exposed(word):
            ours = _copy_header(word)
        elif word.startswith(os.path.join(root, "")):
            ours = _copy_input(word, directory)
        elif root in word:
            ours = None
        if ours is None:
            return None
        words.append(ours)
    # For a compiler's own intermediate files, if the temporary directory cannot be trusted.
    elsewhere = os.path.dirname(directory) != tempfile.gettempdir()
    return ["env", f"TMPDIR={directory}", *words] if elsewhere else words


def publish_output(directory: str, target: str, root: str) -> bool:
    """Attest the output of a build in ``directory`` and put it at ``target``; False if there is no output.

    Raises OSError.
    """
    try:
        with open(_make_inner_path(directory, target), "rb") as file:
            content, mode = file.read(), stat.S_IMODE(os.fstat(file.fileno()).st_mode)
    except FileNotFoundError:
        return False
    gate.attest_file(CodeFile(target, root), content=content)
    entry_files.publish(target, content, root, mode)
    return True


def _make_inner_path(directory: str, path: str) -> str:
    return os.path.join(directory, os.path.basename(path))


def _copy_input(path: str, directory: str) -> str | None:
    content = sources.known_text(path)
    if content is None:
        if not attestations.is_expected(path):
            return None
        try:
            content = entry_files.read_unverified_entry(path, entry_files.max_entry_size(Kind.SOURCE))
        except FileNotFoundError:
            raise  # the cache was cleared, nothing was replaced: it can be built elsewhere
        except (OSError, opening.UnusableEntry):
            content = None
        if content is None or not attestations.is_known(path, content):
            raise EntryRefusedError(f"safecache: {path} was replaced while something was built of it.")
    copy = _make_inner_path(directory, path)
    with open(copy, "xb") as file:
        file.write(content)
    return copy


def _copy_header(path: str) -> str | None:
    """A copy of a header for all builds of this process, with its precompiled form if that is attested.

    None if this process does not keep the header's text.
    """
    text = sources.known_text(path)
    if text is None:
        return None
    headers = _headers.now
    with _headers.lock:
        place = private_directory.get_process_directory()
        if not headers.get(path, "").startswith(place):  # a fork has a directory of its own
            copy = _make_inner_path(tempfile.mkdtemp(prefix="header-", dir=place), path)
            with open(copy, "xb") as file:
                file.write(text)
            _take_precompiled(path, copy)
            headers[path] = copy
        return headers[path]


def _take_precompiled(path: str, copy: str) -> None:
    compiled, copied = path + _PRECOMPILED, copy + _PRECOMPILED
    try:
        most = entry_files.max_entry_size(Kind.NATIVE_CODE)
        digest = opening.copy_regular(compiled, opening.check_up_to(most), copied, flags=os.O_NOFOLLOW, limit=most)
        if attestations.is_known(compiled, digest=digest):
            return
    except (OSError, opening.UnusableEntry):
        pass
    with suppress(OSError):
        os.unlink(copied)


def repeat_if_killed(compile: Callable[[], T]) -> T:
    """Call ``compile``, which starts a compiler, and return its result; call it again if a signal ended the compiler.

    One process of this user makes its second attempt at a time: what ran out of memory side by side would do so again.
    Containers, whose network namespaces differ, do not wait for each other. Waits at most SAFECACHE_WAIT's limit for
    locks. Raises what the last attempt raises.
    """
    try:
        return compile()
    except Exception as error:
        ended = find_signal(error)
        if not ended:
            raise
    events.log_line(
        logging.WARNING,
        f"safecache: a compiler was ended by a signal ({ended}), as the system does when memory runs out. It is "
        "started once more, one at a time in this container. Help: a lower TORCHINDUCTOR_COMPILE_THREADS",
    )
    with _take_turn(time.monotonic() + config.current().lock_timeout):
        return compile()


def find_signal(error: BaseException | None) -> str:
    """Return the name of the signal that ended the compiler; "" if none did, or one that a user sends to end a job."""
    while error is not None:
        if isinstance(error, subprocess.CalledProcessError) and error.returncode < 0:
            ended = signal.Signals(-error.returncode)
            return "" if ended in _WANTED else ended.name
        printed = _PRINTED.search(str(error))
        if printed is not None:
            name = (printed[1] or printed[2]).strip()
            return "" if name in map(signal.strsignal, _WANTED) else name
        error = error.__cause__
    return ""


@contextmanager
def _take_turn(deadline: float) -> Iterator[None]:
    # A name that the kernel gives to one process at a time, and takes back when that ends; it is no file, unix(7).
    name = f"\0safecache: compilers of {os.geteuid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as held:
        while time.monotonic() < deadline:
            try:
                held.bind(name)
                break
            except OSError:
                time.sleep(_PAUSE)
        yield
