"""Where torch and Triton are installed, and what is applied to them: told by the content of their files alone."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Sequence
from importlib.machinery import PathFinder
from typing import NamedTuple

from safecache.errors import SourcePatchError
from safecache.source_patches import reading, tools
from safecache.source_patches.reading import SourcePatch

__all__ = ["Content", "Site", "explain", "find", "recognise"]

# The file of each package that says its version.
_VERSION_FILES = {"torch": "torch/version.py", "triton": "triton/__init__.py"}
_VERSION = re.compile(r"(?m)^__version__(?:: \w+)? = ['\"](\d+(?:\.\d+)*)")


class Site(NamedTuple):
    """A package in a directory of packages, with the patches that there are for its release."""

    directory: str
    package: str
    release: str
    patches: tuple[SourcePatch, ...]


class Content(NamedTuple):
    """Of a file: as upstream made it, as it is, and which patches make the difference."""

    pristine: bytes
    current: bytes
    applied: frozenset[str]


def find(target: str | None) -> list[Site]:
    """torch and Triton in ``target``, or where this Python would import them from. Raises SourcePatchError if none."""
    sites = []
    for package, version_file in _VERSION_FILES.items():
        directory = _installed(package) if target is None else os.path.realpath(target)
        path = os.path.join(directory, version_file)
        if directory and os.path.isfile(path):
            release = _release(path)
            sites.append(Site(directory, package, release, tuple(reading.for_release(package, release))))
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
    """What the file ``path`` is made of. Raises SourcePatchError unless it is upstream's with some of our patches."""
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
            f"it was changed (blob {tools.blob_id(current)[:12]})"
        )
    return content


def explain(current: bytes, patches: Sequence[SourcePatch], path: str) -> Content | None:
    """Which of these patches, all of the file ``path``, make up its content; None if no set of them does."""
    identity = tools.blob_id(current)
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
        diff = reading.combined(applied, path)
    except SourcePatchError:  # of which therefore no more than one can be applied
        return None
    pristine = tools.run(current, diff, path, reverse=True)
    return pristine if pristine is not None and tools.blob_id(pristine) == edits[0].before else None


def _subsets(patches: Sequence[SourcePatch]) -> Iterable[tuple[SourcePatch, ...]]:
    return itertools.chain.from_iterable(itertools.combinations(patches, size) for size in range(1, len(patches) + 1))


def _place(site: Site, path: str) -> str:
    """Where the file lies: in the directory, and nowhere that a link leads to."""
    place = site.directory
    for part in path.split("/"):
        place = os.path.join(place, part)
        if os.path.islink(place):
            raise SourcePatchError(
                f"{place} is a symbolic link to {os.readlink(place)}, through which nothing is written"
            )
    return place
