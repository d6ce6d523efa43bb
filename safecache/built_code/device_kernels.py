"""Kernels that a C++ library finds by itself, such as DeepGEMM's: in a directory that has what verifies alone.

Python sees neither its look-ups nor its compiles. So all processes of a run share a private directory in place of the
library's cache. What Inductor's cache, or a tier, has of its kernels is written there before the library looks; what it
adds there is kept. They are kept as archives of some kernels each, and a table of the archives.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

from safecache.built_code import kept_code, sources
from safecache.fs import filesystem, opening, private_directory
from safecache.places import layout
from safecache.places.refs import Ref
from safecache.reporting import report
from safecache.reporting.kinds import Kind, Reason
from safecache.reporting.report import Refusal
from safecache.session import Part, call_at_exit
from safecache.settings import config, units
from safecache.signing import trust

__all__ = ["find_adoptions", "redirect"]

_CODE = "kernel.cubin"
# What says that a kernel is complete: DeepGEMM wants a source beside it, and deep_jit a marker. Neither reads them.
_MARKERS = ("kernel.cu", ".committed")
_INTERVAL = 1.0
# How often, at most, to wait for more before what was added is kept.
_MOST_WAITS = 8
# From so many archives on, all are written as one.
_MOST_ARCHIVES = 32
_TABLE = "table"
# How long another process may take to write what is kept.
_PATIENCE = 30.0


class _Directory:
    """The run's directory of one library. One process at a time, by a lock, keeps what all of them add to it."""

    def __init__(self, place: str, root: str) -> None:
        self.place, self._kernels, self._root = place, os.path.join(place, "cache"), root
        self._kept, self._seen, self._waits = set[str](), set[str](), 0
        os.makedirs(place, mode=0o700, exist_ok=True)
        self._lock = open(os.path.join(place, ".lock"), "ab")  # noqa: SIM115
        self._is_keeper = False
        self._working, self._ended = threading.Lock(), threading.Event()

    def fill(self) -> None:
        """Write what is kept there, or wait until another process has. Raises OSError."""
        limit = time.monotonic() + _PATIENCE
        while not os.path.isdir(self._kernels) and time.monotonic() < limit:
            if self._take_lock():
                staged = tempfile.mkdtemp(dir=self.place)
                for archive in _read_table(self._root):
                    for name, code in _read_archive(self._root, archive).items():
                        if name not in self._kept:
                            _write_kernel(os.path.join(staged, name), code)
                            self._kept.add(name)
                os.rename(staged, self._kernels)
            else:
                time.sleep(0.02)

    def _take_lock(self) -> bool:
        self._is_keeper = self._is_keeper or filesystem.try_lock(self._lock.fileno())
        return self._is_keeper

    def watch(self) -> None:
        """Keep what is added from now on, in a thread."""
        threading.Thread(target=self._watch, name="safecache-kernels", daemon=True).start()

    def _watch(self) -> None:
        while not self._ended.wait(_INTERVAL):
            self.keep_new(at_once=False)

    def keep_new(self, *, at_once: bool = True) -> None:
        """Keep what has been added; else only if nothing was since the last call, or some calls have passed.

        What fails is reported, and tried again.
        """
        with (
            self._working,
            report.contain_errors("the copy of kernels", "Other processes compile them themselves."),
        ):
            if self._ended.is_set() or not self._take_lock():
                return
            added = set(os.listdir(self._kernels)) - self._kept
            is_due = at_once or added == self._seen or self._waits == _MOST_WAITS
            self._seen, self._waits = added, 0 if is_due else self._waits + 1
            if added and is_due:
                self._kept |= _keep_kernels(self._root, {name: os.path.join(self._kernels, name) for name in added})

    def end(self) -> None:
        """Keep nothing more."""
        with self._working:
            self._ended.set()


class _Directories(dict[str, _Directory]):
    def end(self) -> None:
        for directory in self.values():
            directory.end()


_directories: Part[_Directories] = Part(_Directories)


def _keep_all() -> None:
    for directory in _directories.now.values():
        directory.keep_new()
        directory.end()


def redirect(variable: str, default: str) -> None:
    """Make the library that reads ``variable`` use the run's private directory, filled with the verified kernels.

    ``default``: where the library keeps kernels if ``variable`` is not set. Unsealed kernels there are reported and
    stay. With SAFECACHE=observe, and where the user trusts that directory as private, it stays in use. Raises
    EntryRefusedError for unsealed kernels in strict mode, and PermissionError if no private directory can be made.
    """
    wanted, original = config.library_directory(variable)
    directory = _directories.now.get(variable)
    if directory is not None and wanted == directory.place:
        return
    places = (wanted or default).split(os.pathsep)
    if all(sources.is_private(place) for place in places):
        return
    if directory is None and not config.current().is_observing:
        try:
            above = private_directory.get_run_directory(config.run_id())
        except PermissionError:
            above = private_directory.get_process_directory()
        directory = _Directory(os.path.join(above, variable), _find_root(original or places[0]))
    for place in places:
        if directory is None or place != directory.place:
            _tell_unsealed(place)
    if directory is None:
        return
    config.set_library_directory(variable, directory.place, original or places[0])
    if variable not in _directories.now:
        with report.contain_errors("the directory of kernels", "Recompiling them."):
            directory.fill()
        _directories.now[variable] = directory
        directory.watch()
        call_at_exit(_keep_all)  # after that which removes the run's directory, so that it is called before


def _find_root(place: str) -> str:
    """Return the cache directory for the archives of a library that has its own cache at ``place``."""
    # vLLM sets TORCHINDUCTOR_CACHE_DIR anew for each model, after DeepGEMM's import. So its models share one.
    environ = config.get_environment()
    vllm = layout.vllm_cache_dir(environ)
    is_of_vllm = os.path.abspath(place).startswith(os.path.join(os.path.dirname(vllm), ""))
    return os.path.join(vllm, layout.VLLM_CACHES[0]) if is_of_vllm else layout.inductor_cache_dir(environ)


def _tell_unsealed(place: str) -> None:
    """Report the kernels that the library has there and nobody has sealed."""
    with suppress(OSError):  # it has none
        unsealed = set(os.listdir(os.path.join(place, "cache"))).difference(*_read_table(_find_root(place)).values())
        if unsealed:
            evidence = units.write_count(len(unsealed), "kernel has", "kernels have")
            evidence += " no sealed record, as stock compiles them"
            remedy = f"Help: if only you could write there, run safecache adopt {place} to use them."
            refusal = Refusal(Reason.UNSEALED, evidence, remedy)
            if not trust.is_observed(refusal, Kind.NATIVE_CODE, place):
                report.refuse(refusal, Kind.NATIVE_CODE, place, "Recompiling them; the files stay.")


def _locate_archive(root: str, name: str) -> Ref:
    return kept_code.locate(f"device kernels {name}", ".o", root)


def _write_kernel(directory: str, code: bytes) -> None:
    os.mkdir(directory)
    with open(os.path.join(directory, _CODE), "xb") as file:
        file.write(code)
    for marker in _MARKERS:
        os.mknod(os.path.join(directory, marker))


def _read_table(root: str) -> dict[str, list[str]]:
    """The names of the kernels in each archive, the oldest first; empty if there is none that verifies."""
    found = kept_code.fetch(_locate_archive(root, _TABLE))
    return {} if found is None else json.loads(found[0])


def _read_archive(root: str, archive: str) -> dict[str, bytes]:
    """The kernels in the archive, by name; none if neither the cache nor a tier has one that verifies."""
    found = kept_code.fetch(_locate_archive(root, archive))
    if found is None:
        return {}
    with zipfile.ZipFile(io.BytesIO(found[0])) as file:
        return {name: file.read(name) for name in file.namelist()}


def _keep_kernels(root: str, directories: Mapping[str, str]) -> set[str]:
    """Keep the kernels in these directories, each by its name, and return the names of those that are complete.

    A kernel's name has a hash of its source, the headers, the compiler and its options. Raises OSError, and
    UnusableEntry for what others could have written.
    """
    codes = {}
    for name, directory in directories.items():
        path = os.path.join(directory, _CODE)
        with suppress(FileNotFoundError):
            codes[name] = opening.read_regular(path, opening.check_private(path))
    table = _read_table(root)
    if len(table) >= _MOST_ARCHIVES:
        codes = {name: code for archive in table for name, code in _read_archive(root, archive).items()} | codes
        table = {}
    if codes:
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w") as file:
            for name, code in codes.items():
                file.writestr(zipfile.ZipInfo(name), code)
        archive = hashlib.sha256(content.getvalue()).hexdigest()
        kept_code.keep_content(_locate_archive(root, archive), content.getvalue())
        kept_code.keep_content(_locate_archive(root, _TABLE), json.dumps(table | {archive: sorted(codes)}).encode())
    return codes.keys() & directories


def find_adoptions(root: str) -> Iterator[tuple[str, Callable[[], bool]]]:
    """Yield the path of the kernels in the library's cache ``root``, if any, with a step that seals copies of them.

    The step returns False if all are kept already. It raises UnusableEntry for what others could write, and OSError.
    """
    place, kept = os.path.join(root, "cache"), _find_root(root)

    def adopt() -> bool:
        new = names.difference(*_read_table(kept).values())
        return bool(_keep_kernels(kept, {name: os.path.join(place, name) for name in new}))

    with suppress(FileNotFoundError, NotADirectoryError):
        names = {name for name in os.listdir(place) if os.path.lexists(os.path.join(place, name, _CODE))}
        if names:
            yield place, adopt
