"""What is applied, and what has to change for other patches to be: decided before the first file is touched."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from safecache.errors import SourcePatchError
from safecache.source_patches import publishing, sites
from safecache.source_patches.publishing import Change
from safecache.source_patches.sites import Content, Site, SourcePatch

__all__ = ["State", "apply", "revert", "states"]


class State(NamedTuple):
    """Of a patch: "applied", "not applied", "partly applied" (a process was killed) or "does not fit", and why."""

    site: Site
    patch: SourcePatch
    state: str
    reason: str

    @property
    def fits(self) -> bool:
        """Whether it is applied, or can be."""
        return self.state != "does not fit"


def states(found: Sequence[Site], names: Sequence[str]) -> list[State]:
    """The state of each patch that is meant. Raises SourcePatchError for a name that none has."""
    return [_state(site, patch) for site, patch in _meant(found, names)]


def _meant(found: Sequence[Site], names: Sequence[str]) -> list[tuple[Site, SourcePatch]]:
    """The patches of these names, or all; torch and Triton may each have one of a name."""
    known = {patch.name for site in found for patch in site.patches}
    unknown = sorted(set(names) - known)
    if unknown:
        releases = " and ".join(f"{site.package} {site.release}" for site in found)
        there_are = f"those that there are: {', '.join(sorted(known))}" if known else "there is none"
        raise SourcePatchError(f"no patch for {releases} is called {', '.join(unknown)}; {there_are}")
    return [(site, patch) for site in found for patch in site.patches if not names or patch.name in names]


def _state(site: Site, patch: SourcePatch) -> State:
    try:
        contents = [sites.recognise(site, path) for path in patch.edits]
        for path, content in zip(patch.edits, contents, strict=True):
            _changed(site, path, content, content.applied | {patch.name})
    except SourcePatchError as error:
        return State(site, patch, "does not fit", str(error))
    applied = [patch.name in content.applied for content in contents]
    word = "applied" if all(applied) else "partly applied" if any(applied) else "not applied"
    return State(site, patch, word, "")


def apply(found: Sequence[Site], names: Sequence[str]) -> list[str]:
    """Apply the patches of these names, or all, and return the files that changed: all of them, or none.

    Raises SourcePatchError or OSError, and then nothing has changed.
    """
    return _change(found, names, frozenset.union)


def revert(found: Sequence[Site], names: Sequence[str]) -> list[str]:
    """Take them back, likewise."""
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
        content = sites.recognise(site, path)
        new = _changed(site, path, content, become(content.applied, of_file))
        if new != content.current:
            yield Change(os.path.join(site.directory, path), content.current, new)


def _changed(site: Site, path: str, content: Content, wanted: frozenset[str]) -> bytes:
    """The file with these patches, which is recognised as that. Raises SourcePatchError."""
    if not wanted:
        return content.pristine
    patches = [patch for patch in site.patches if patch.name in wanted and path in patch.edits]
    identity = publishing.blob_id(content.pristine)
    others = [patch.name for patch in patches if patch.edits[path].before != identity]
    if others:
        raise SourcePatchError(f"{', '.join(others)} is for another release's {path} (blob {identity[:12]} is there)")
    new = publishing.run(content.pristine, sites.combined(patches, path), path)
    again = None if new is None else sites.explain(new, patches, path)
    if new is None or again is None or again.applied != wanted:
        raise SourcePatchError(f"{' and '.join(sorted(wanted))} cannot be applied to {path} of {site.package}")
    return new
