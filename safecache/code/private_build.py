"""Builds out of others' reach, for a target where they can write, and replace what a compiler reads while it runs.

Each input is written to a private directory, with the bytes that this process knows, and the output is published from
there, its record first.
"""

from __future__ import annotations

import itertools
import os
import re
import stat
import tempfile
from contextlib import suppress

from safecache.code import sources
from safecache.errors import EntryRefusedError
from safecache.files import opening, ownership, private_directory
from safecache.places.layout import CodeFile
from safecache.reporting.kinds import Kind
from safecache.session import Part, inherit
from safecache.store import attestations, entry_files, gate

__all__ = ["check_inputs", "command", "is_dispensable", "is_needed", "publish"]

# GCC's precompiled headers can lie anywhere, Clang's only beside their sources.
_PRECOMPILED, _IMMOVABLE = ".gch", ".pch"

# The whole content of a header that torch precompiles: it includes one of torch's own.
_INCLUDES = re.compile(rb"#include <torch/[a-zA-Z0-9_]+(/[a-zA-Z0-9_]+)*\.h>\s*")

_headers: Part[dict[str, str]] = Part(dict, inherit)


def is_needed(target: str) -> bool:
    """Whether others could replace files beside ``target`` while it is built."""
    return ownership.why_not_private(os.path.dirname(target)) is not None


def is_dispensable(target: str) -> bool:
    """Whether ``target`` can be done without: a precompiled header, of some hundred megabytes."""
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
            _check(word, root)


def _check_header(path: str) -> None:
    directory = os.path.dirname(path)
    if not attestations.is_expected(path):
        # Made before the hooks were on, or in a process that did not report it: torch makes it once per process.
        with suppress(opening.UnusableEntry):
            content = entry_files.read_entry(path, entry_files.max_entry_size(Kind.SOURCE))
            if _INCLUDES.fullmatch(content):
                attestations.attest_in_process(path, content)
    _check(path, directory)
    for compiled in (path + _PRECOMPILED, path + _IMMOVABLE):
        # The compiler may be able to read a moment later what cannot be read now.
        if os.path.lexists(compiled) and gate.quarantine_unattested(CodeFile(compiled, directory)):
            _check(compiled, directory)


def _check(path: str, root: str) -> None:
    if gate.refusal_for_file(CodeFile(path, root)) is not None:
        raise EntryRefusedError(f"safecache: {path} was replaced while something was built of it.")


def command(stock: list[str], target: str, root: str, directory: str) -> list[str] | None:
    """The ``stock`` command line, with what it reads and writes below the cache ``root`` moved to ``directory``.

    None if it has an unknown form. Raises EntryRefusedError for an input that was replaced, and OSError for one that is
    gone or cannot be copied.
    """
    if stock.count(target) != 1 or target.endswith(_IMMOVABLE):
        return None
    words: list[str] = []
    for option, word in itertools.pairwise(["", *stock]):
        ours: str | None = word
        if word == target:
            ours = _inside(directory, target)
        elif option == "-include" and is_needed(word):
            ours = _header(word)
        elif word.startswith(os.path.join(root, "")):
            ours = _input(word, directory)
        elif root in word:
            ours = None
        if ours is None:
            return None
        words.append(ours)
    # For a compiler's own intermediate files, if the temporary directory cannot be trusted.
    elsewhere = os.path.dirname(directory) != tempfile.gettempdir()
    return ["env", f"TMPDIR={directory}", *words] if elsewhere else words


def publish(directory: str, target: str, root: str) -> bool:
    """Attest the output of a build in ``directory`` and put it at ``target``; False if there is no output.

    Raises OSError.
    """
    try:
        with open(_inside(directory, target), "rb") as file:
            content, mode = file.read(), stat.S_IMODE(os.fstat(file.fileno()).st_mode)
    except FileNotFoundError:
        return False
    gate.attest_file(CodeFile(target, root), content=content)
    entry_files.publish(target, content, root, mode)
    return True


def _inside(directory: str, path: str) -> str:
    return os.path.join(directory, os.path.basename(path))


def _input(path: str, directory: str) -> str | None:
    content = sources.known_text(path)
    if content is None:
        if not attestations.is_expected(path):
            return None
        try:
            content = entry_files.read_entry(path, entry_files.max_entry_size(Kind.SOURCE))
        except FileNotFoundError:
            raise  # the cache was cleared, nothing was replaced: it can be built elsewhere
        except (OSError, opening.UnusableEntry):
            content = None
        if content is None or not attestations.is_known(path, content):
            raise EntryRefusedError(f"safecache: {path} was replaced while something was built of it.")
    copy = _inside(directory, path)
    with open(copy, "xb") as file:
        file.write(content)
    return copy


def _header(path: str) -> str | None:
    """A copy of a header for all builds of this process, with its precompiled form if that is attested.

    None if this process does not keep the header's text.
    """
    text = sources.known_text(path)
    if text is None:
        return None
    headers = _headers.now
    with _headers.lock:
        place = private_directory.process_directory()
        if not headers.get(path, "").startswith(place):  # a fork has a directory of its own
            copy = _inside(tempfile.mkdtemp(prefix="header-", dir=place), path)
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
