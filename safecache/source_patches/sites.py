"""Where torch and Triton are installed, which patches are applied, and how their files change with other patches."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.machinery import PathFinder
from typing import NamedTuple

from safecache.errors import SourcePatchError
from safecache.source_patches import publishing
from safecache.source_patches.publishing import Change

__all__ = [
    "Content",
    "Edit",
    "Hunk",
    "Site",
    "SourcePatch",
    "State",
    "apply",
    "combined",
    "explain",
    "find",
    "folder",
    "for_release",
    "parse",
    "recognise",
    "revert",
    "states",
]


class Hunk(NamedTuple):
    """Lines that replace ``removed`` lines from line ``start`` on, counted as in the header of a unified diff."""

    start: int
    removed: int
    added: int
    lines: bytes

    @property
    def before(self) -> int:
        """How many lines of the file precede it."""
        return self.start if self.removed == 0 else self.start - 1


class Edit(NamedTuple):
    """What a patch does to one file, known by the blob ids that git gives to the file's content before and after."""

    path: str
    before: str
    after: str
    hunks: tuple[Hunk, ...]


class SourcePatch(NamedTuple):
    """A parsed patch file; ``releases``: as in its ``Release:`` line, without the package's name."""

    name: str
    promise: str
    package: str
    releases: tuple[str, ...]
    edits: dict[str, Edit]

    def is_for(self, release: str) -> bool:
        """Whether it is for this release, such as 2.13.0, or for its whole release line."""
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
    # A patch of git format-patch ends with git's version.
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
    """The directory of the patches: inside the installed package, or beside it in a checkout."""
    room = os.path.dirname(os.path.abspath(__file__))
    installed = os.path.join(room, "patches")
    return installed if os.path.isdir(installed) else os.path.join(os.path.dirname(os.path.dirname(room)), "patches")


def for_release(package: str, release: str) -> list[SourcePatch]:
    """The patches for this release of torch or triton, sorted by name. Raises SourcePatchError for a malformed one."""
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
    """One diff with all changes of these patches to the file, each of which was made against the pristine file.

    It does not depend on their order. Raises SourcePatchError if two of them change the same lines.
    """
    ordered = sorted(patches, key=lambda patch: patch.name)
    hunks = [(hunk, patch.name) for patch in ordered for hunk in patch.edits[path].hunks]
    # An insertion goes before a replacement of the line that follows it.
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


# The file of each package that says its version.
_VERSION_FILES = {"torch": "torch/version.py", "triton": "triton/__init__.py"}
_VERSION = re.compile(r"(?m)^__version__(?:: \w+)? = ['\"](\d+(?:\.\d+)*)")


class Site(NamedTuple):
    """A package in a site-packages directory, with the patches available for its release."""

    directory: str
    package: str
    release: str
    patches: tuple[SourcePatch, ...]


class Content(NamedTuple):
    """A file's upstream content, its current content, and the names of the patches that make the difference."""

    pristine: bytes
    current: bytes
    applied: frozenset[str]


def find(target: str | None) -> list[Site]:
    """torch and Triton in ``target``, or where this Python imports them from. Raises SourcePatchError if neither is."""
    sites = []
    for package, version_file in _VERSION_FILES.items():
        directory = _installed(package) if target is None else os.path.realpath(target)
        path = os.path.join(directory, version_file)
        if directory and os.path.isfile(path):
            release = _release(path)
            sites.append(Site(directory, package, release, tuple(for_release(package, release))))
    if not sites:
        where = "is not installed" if target is None else f"is not in {target}"
        raise SourcePatchError(f"torch {where}, and neither is triton: --target names the directory that they lie in")
    return sites


def _installed(package: str) -> str:
    spec = PathFinder.find_spec(package)
    return (
        "" if spec is None or spec.origin is None else os.path.realpath(os.path.dirname(os.path.dirname(spec.origin)))
    )


def _release(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        found = _VERSION.search(file.read())
    if found is None:
        raise SourcePatchError(f"{path} does not say which release this is")
    return found[1]


def recognise(site: Site, path: str) -> Content:
    """Which patches the file ``path`` has. Raises SourcePatchError unless it is upstream's with some of our patches."""
    place = _place(site, path)
    try:
        with open(place, "rb") as file:
            current = file.read()
    except OSError as error:
        raise SourcePatchError(f"{place} cannot be read: {error.strerror}") from error
    touching = [patch for patch in site.patches if path in patch.edits]
    content = explain(current, touching, path)
    if content is None:
        names = " and ".join(sorted({edit.before[:12] for edit in (patch.edits[path] for patch in touching)}))
        raise SourcePatchError(
            f"{place} is neither that of {site.package} {site.release} (blob {names}) nor that with patches applied: "
            f"it was changed (blob {publishing.blob_id(current)[:12]})"
        )
    return content


def explain(current: bytes, patches: Sequence[SourcePatch], path: str) -> Content | None:
    """Which of these patches, all of the file ``path``, are in its content; None if no subset explains it."""
    identity = publishing.blob_id(current)
    if any(patch.edits[path].before == identity for patch in patches):
        return Content(current, current, frozenset())
    for applied in _subsets(patches):
        pristine = _reversed(current, identity, applied, path)
        if pristine is not None:
            return Content(pristine, current, frozenset(patch.name for patch in applied))
    return None


def _reversed(current: bytes, identity: str, applied: Sequence[SourcePatch], path: str) -> bytes | None:
    edits = [patch.edits[path] for patch in applied]
    if len(edits) == 1 and edits[0].after != identity:
        return None
    if len({edit.before for edit in edits}) > 1:
        return None
    try:
        diff = combined(applied, path)
    except SourcePatchError:  # they overlap, so that they cannot all be applied
        return None
    pristine = publishing.run(current, diff, path, reverse=True)
    return pristine if pristine is not None and publishing.blob_id(pristine) == edits[0].before else None


def _subsets(patches: Sequence[SourcePatch]) -> Iterable[tuple[SourcePatch, ...]]:
    return itertools.chain.from_iterable(itertools.combinations(patches, size) for size in range(1, len(patches) + 1))


def _place(site: Site, path: str) -> str:
    """The path of the file in the site. Raises SourcePatchError if any part of it is a symbolic link."""
    place = site.directory
    for part in path.split("/"):
        place = os.path.join(place, part)
        if os.path.islink(place):
            raise SourcePatchError(
                f"{place} is a symbolic link to {os.readlink(place)}, through which nothing is written"
            )
    return place


class State(NamedTuple):
    """A patch that is "applied", "not applied", "partly applied" (a run was killed) or "does not fit", and why not."""

    site: Site
    patch: SourcePatch
    state: str
    reason: str

    @property
    def fits(self) -> bool:
        """Whether it is applied, or can be."""
        return self.state != "does not fit"


def states(found: Sequence[Site], names: Sequence[str]) -> list[State]:
    """The state of the patches of these names, or of all. Raises SourcePatchError for an unknown name."""
    return [_state(site, patch) for site, patch in _meant(found, names)]


def _meant(found: Sequence[Site], names: Sequence[str]) -> list[tuple[Site, SourcePatch]]:
    """The patches of these names, or all; torch and Triton may each have one of the same name."""
    known = {patch.name for site in found for patch in site.patches}
    unknown = sorted(set(names) - known)
    if unknown:
        releases = " and ".join(f"{site.package} {site.release}" for site in found)
        there_are = f"those that there are: {', '.join(sorted(known))}" if known else "there is none"
        raise SourcePatchError(f"no patch for {releases} is called {', '.join(unknown)}; {there_are}")
    return [(site, patch) for site in found for patch in site.patches if not names or patch.name in names]


def _state(site: Site, patch: SourcePatch) -> State:
    try:
        contents = [recognise(site, path) for path in patch.edits]
        for path, content in zip(patch.edits, contents, strict=True):
            _changed(site, path, content, content.applied | {patch.name})
    except SourcePatchError as error:
        return State(site, patch, "does not fit", str(error))
    applied = [patch.name in content.applied for content in contents]
    word = "applied" if all(applied) else "partly applied" if any(applied) else "not applied"
    return State(site, patch, word, "")


def apply(found: Sequence[Site], names: Sequence[str]) -> list[str]:
    """Apply the patches of these names, or all, and return the paths of the files that changed.

    All files are changed, or none: then it raises SourcePatchError or OSError.
    """
    return _change(found, names, frozenset.union)


def revert(found: Sequence[Site], names: Sequence[str]) -> list[str]:
    """Revert the patches of these names, or all; returns and raises as apply()."""
    return _change(found, names, frozenset.difference)


def _change(
    found: Sequence[Site], names: Sequence[str], become: Callable[[frozenset[str], frozenset[str]], frozenset[str]]
) -> list[str]:
    with contextlib.ExitStack() as stack:
        for directory in sorted({site.directory for site in found}):
            stack.enter_context(publishing.locked(directory))
        meant = _meant(found, names)
        changes = list(_changes(meant, become))
        for directory in {
            os.path.dirname(os.path.join(s.directory, path)) for s, patch in meant for path in patch.edits
        }:
            publishing.remove_leftovers(directory)
        publishing.publish(changes)
    return [change.path for change in changes]


def _changes(
    meant: Sequence[tuple[Site, SourcePatch]],
    become: Callable[[frozenset[str], frozenset[str]], frozenset[str]],
) -> Iterator[Change]:
    sites_of = {path: site for site, patch in meant for path in patch.edits}
    for path, site in sites_of.items():
        of_file = frozenset(patch.name for _, patch in meant if path in patch.edits)
        content = recognise(site, path)
        new = _changed(site, path, content, become(content.applied, of_file))
        if new != content.current:
            yield Change(os.path.join(site.directory, path), content.current, new)


def _changed(site: Site, path: str, content: Content, wanted: frozenset[str]) -> bytes:
    """The file's content with exactly these patches, which recognise() confirms. Raises SourcePatchError."""
    if not wanted:
        return content.pristine
    patches = [patch for patch in site.patches if patch.name in wanted and path in patch.edits]
    identity = publishing.blob_id(content.pristine)
    others = [patch.name for patch in patches if patch.edits[path].before != identity]
    if others:
        raise SourcePatchError(f"{', '.join(others)} is for another release's {path} (blob {identity[:12]} is there)")
    new = publishing.run(content.pristine, combined(patches, path), path)
    again = None if new is None else explain(new, patches, path)
    if new is None or again is None or again.applied != wanted:
        raise SourcePatchError(f"{' and '.join(sorted(wanted))} cannot be applied to {path} of {site.package}")
    return new
