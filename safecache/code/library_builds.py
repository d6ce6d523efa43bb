"""Libraries that Inductor builds from what it generated: found verified, in this tier or a lower one, or built."""

from __future__ import annotations

import copy
import os
import shlex
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from safecache import compiles
from safecache.code import generated, private_build
from safecache.code.generated import root_of
from safecache.files import folders, private_directory, temporaries
from safecache.places.layout import LOADED, CodeFile
from safecache.places.refs import locate
from safecache.ports import Requested, plugs, tell
from safecache.reporting import events
from safecache.reporting.kinds import Kind, Reason
from safecache.store import attestations, bundles, directories, entry_files, gate, manifests
from safecache.tiers import directory_faults

__all__ = ["Build", "are_attested", "attach_inputs", "current_build", "mark_loaded"]

_SCRATCH = "CxxBuild"
# As torch ends the name of the source that the library of a kernel is named after.
_MAIN = ".main.cpp"


def current_build() -> Build:
    """The search for libraries that this thread is in; one that verifies nothing where it is in none."""
    return compiles.current.build or Build()


class Build:
    """A search of this thread for libraries, and the build of those that it does not find.

    ``verifies``: what is found is verified, and what is built is attested. ``error``: the last that it met.
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
        root = root_of(path)
        return gate.is_attested(CodeFile(path, root)) or _is_fetched(path, root)

    def settle_target(self, path: str) -> None:
        """Quarantine an unattested file at ``path``, as torch asks for it, or copy one from a lower tier.

        Raises directory_faults.Unsettled if it cannot be quarantined or verified; EntryRefusedError in strict mode.
        """
        # A precompiled header of 150 MB is verified when something is built with it.
        if not self._verifies or private_build.is_dispensable(path):
            return
        root = root_of(path)
        try:
            is_there = gate.quarantine_unattested(CodeFile(path, root))
            _settle_marker(path + LOADED, root, is_there)
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
        with compiles.scope(build=None):
            path = builder.get_target_file_path()
            root = root_of(path)
            result = None
            privately = private_build.is_needed(path) and _build_privately(builder, path, root)
            if not privately:
                command = shlex.split(builder.get_command_line())
                if sources_of_parent is not None:
                    private_build.check_inputs(command, path, root, generated.headers_folder() or "")
                if private_build.is_dispensable(path) and command.count(path) == 1:
                    self._make_unseen(builder, command, path, root)
                else:
                    result = self._make(make, builder)
                    gate.attest_file(CodeFile(path, root))
        directories.propagate_file(CodeFile(path))
        return result

    def _make_unseen(self, builder: Any, command: list[str], path: str, root: str) -> None:
        """Build a precompiled header, which torch looks for without a lock: it appears whole, and after its record."""
        unseen = copy.copy(builder)
        with temporaries.beside(path) as temporary:
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
    """Whether all of these files exist and are attested. Precompiled headers only have to exist."""
    return all(map(_is_attested, paths))


def _is_attested(path: str) -> bool:
    # A precompiled header of 150 MB is verified when something is built with it.
    return (
        os.path.isfile(path) if private_build.is_dispensable(path) else gate.is_attested(CodeFile(path, root_of(path)))
    )


def attach_inputs(builder: Any, sources: str | list[str], options: Any) -> None:
    """Attach the digests of its sources to the builder, for the compile worker that it may be sent to."""
    header = getattr(options, "precompiled_header", None)
    paths = [sources] if isinstance(sources, str) else sources
    builder._safecache_sources = attestations.export_known([*paths, *([header] if header else [])])


def _settle_marker(path: str, root: str, is_there: bool) -> None:
    """Quarantine the marker that a probe could be loaded if its probe is gone, or nothing attests the marker."""
    if is_there and os.path.lexists(path):
        gate.quarantine_unattested(CodeFile(path, root))
    elif os.path.lexists(path):
        entry_files.quarantine(path, root, Reason.UNSEALED)


def mark_loaded(path: str, root: str) -> None:
    """Attest the empty file that torch is about to write beside a probe that it could load, not to load it again."""
    marker = path + LOADED
    gate.attest_file(CodeFile(marker, root), content=b"")
    directories.send_content(CodeFile(marker), b"", record=manifests.record_of(CodeFile(marker, root), b"", {}))
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
        command = private_build.command(shlex.split(builder.get_command_line()), path, root, directory)
        if command is not None:
            private = copy.copy(builder)
            private._name, private._output_dir = "build", directory
            private.get_command_line = lambda: shlex.join(command)
            try:
                private.build()
            except Exception:
                if not private_build.is_dispensable(path):
                    raise
                return True
            if private_build.publish(directory, path, root):
                return True
    message = f"{path} was built where others can write, for what it is built of is not known to safecache."
    events.report(Reason.STOOD_DOWN, message, cause=root, remedy="Build where nobody else can.")
    return False
