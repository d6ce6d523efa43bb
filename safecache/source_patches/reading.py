"""The files in patches/: what they promise, which releases they are for, and what they do to which file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from safecache.errors import SourcePatchError

__all__ = ["Edit", "Hunk", "SourcePatch", "combined", "folder", "for_release", "parse"]


class Hunk(NamedTuple):
    """Lines that replace ``removed`` lines from line ``start`` on; those are counted as in a unified diff's header."""

    start: int
    removed: int
    added: int
    lines: bytes

    @property
    def before(self) -> int:
        """How many lines of the file lie before it."""
        return self.start if self.removed == 0 else self.start - 1


class Edit(NamedTuple):
    """What a patch does to one file, known by the blob ids that git gives to the file's content before and after."""

    path: str
    before: str
    after: str
    hunks: tuple[Hunk, ...]


class SourcePatch(NamedTuple):
    """``releases``: as its line ``Release:`` has them, without the package's name."""

    name: str
    promise: str
    package: str
    releases: tuple[str, ...]
    edits: dict[str, Edit]

    def is_for(self, release: str) -> bool:
        """Whether it is for this release, such as 2.13.0, or for all of its line."""
        return any(f"{release}.".startswith(f"{known}.") for known in self.releases)


_TITLE = re.compile(r"(?P<name>[a-z0-9-]+): (?P<promise>.+)")
_RELEASE = re.compile(r"(?m)^Release: (?P<package>torch|triton) (?P<releases>[0-9.]+(?:, [0-9.]+)*)$")
_FILE = re.compile(
    rb"diff --git a/(?P<path>\S+) b/(?P=path)\n"
    rb"index (?P<before>[0-9a-f]{40})\.\.(?P<after>[0-9a-f]{40})(?: 100[0-7]{3})?\n"
    rb"--- a/(?P=path)\n"
    rb"\+\+\+ b/(?P=path)\n"
    rb"(?P<hunks>(?:@@ [^\n]*\n(?:[-+\\][^\n]*\n)*)+)"
)
_HUNK = re.compile(
    rb"@@ -(?P<start>\d+)(?:,(?P<removed>\d+))? \+\d+(?:,(?P<added>\d+))? @@[^\n]*\n(?P<lines>(?:[-+\\][^\n]*\n)*)"
)


def parse(content: bytes, origin: str) -> SourcePatch:
    """The patch in the file ``origin``. Raises SourcePatchError if it is not laid out as patches/README.md says."""
    head, separator, diff = content.partition(b"\n---\n")
    title = _TITLE.match(head.decode("utf-8"))
    release = _RELEASE.search(head.decode("utf-8"))
    found = list(_FILE.finditer(diff))
    whole = b"".join(each[0] for each in found)
    # Git ends a patch that it mails with its version.
    if not (separator and title and release and found and diff.partition(b"\n-- \n")[0].strip() == whole.strip()):
        raise SourcePatchError(f"{origin} is no patch as safecache lays them out")
    edits = [_edit(each, origin) for each in found]
    releases = tuple(release["releases"].split(", "))
    return SourcePatch(
        title["name"], title["promise"], release["package"], releases, {edit.path: edit for edit in edits}
    )


def _edit(found: re.Match[bytes], origin: str) -> Edit:
    path, before, after = (found[name].decode() for name in ("path", "before", "after"))
    if path != os.path.normpath(path) or path.startswith(("/", "..")):
        raise SourcePatchError(f"{origin} names a file outside of its package: {path}")
    return Edit(path, before, after, tuple(_hunk(each) for each in _HUNK.finditer(found["hunks"])))


def _hunk(found: re.Match[bytes]) -> Hunk:
    removed, added = (1 if found[name] is None else int(found[name]) for name in ("removed", "added"))
    return Hunk(int(found["start"]), removed, added, found["lines"])


def folder() -> str:
    """Where the patches lie: within the installed package, or beside it in a checkout."""
    room = os.path.dirname(os.path.abspath(__file__))
    installed = os.path.join(room, "patches")
    return installed if os.path.isdir(installed) else os.path.join(os.path.dirname(os.path.dirname(room)), "patches")


def for_release(package: str, release: str) -> list[SourcePatch]:
    """The patches for this release of torch or triton, by name. Raises SourcePatchError for one that cannot be read."""
    line = os.path.join(folder(), "{}-{}.{}".format(package, *(release.split(".") + [""])[:2]))
    found = {}
    for name in sorted(os.listdir(line)) if os.path.isdir(line) else ():
        if name.endswith(".patch"):
            path = os.path.join(line, name)
            with open(path, "rb") as file:
                patch = parse(file.read(), path)
            if patch.is_for(release):
                if patch.name in found:
                    raise SourcePatchError(f"{line} has {patch.name} for {package} {release} twice")
                found[patch.name] = patch
    return [found[name] for name in sorted(found)]


def combined(patches: Iterable[SourcePatch], path: str) -> bytes:
    """One diff of all that these patches do to the file, each having been made without regard to the others.

    It does not depend on their order. Raises SourcePatchError where two of them change the same lines.
    """
    ordered = sorted(patches, key=lambda patch: patch.name)
    hunks = [(hunk, patch.name) for patch in ordered for hunk in patch.edits[path].hunks]
    # An insertion goes before what replaces the line behind it.
    hunks.sort(key=lambda each: (each[0].before, each[0].removed > 0))
    _check_apart(hunks, path)
    return f"--- a/{path}\n+++ b/{path}\n".encode() + b"".join(_shifted([hunk for hunk, _ in hunks]))


def _check_apart(hunks: Sequence[tuple[Hunk, str]], path: str) -> None:
    end, name = 0, ""
    for hunk, patch in hunks:
        if hunk.before < end:
            raise SourcePatchError(f"{name} and {patch} change the same lines of {path}: apply one of them")
        end, name = hunk.before + hunk.removed, patch


def _shifted(hunks: Sequence[Hunk]) -> Iterable[bytes]:
    grown = 0
    for hunk in hunks:
        start = hunk.before + grown + (hunk.added > 0)
        yield f"@@ -{hunk.start},{hunk.removed} +{start},{hunk.added} @@\n".encode() + hunk.lines
        grown += hunk.added - hunk.removed
