"""Whether code can be loaded from where it is compiled to."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress

from safecache.code import exec_directory
from safecache.doctor import finding, places
from safecache.doctor.finding import Finding
from safecache.files import mounts
from safecache.patching import targets
from safecache.settings import config
from safecache.signing import provenance

__all__ = ["check"]


def check(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Directories on a noexec mount, and an approved one that is not used."""
    chosen = config.current().exec_dir
    if chosen is not None:
        against = exec_directory.objection(chosen)
        if against is not None:
            remedy = f"install -d -m 0755 {shlex.quote(chosen)}  # by you or root, on a file system that is not noexec"
            yield finding.error("exec-dir-unusable", f"SAFECACHE_EXEC_DIR={chosen} is not used: {against}.", remedy)
    else:
        for place in places.caches(environ):
            if mounts.forbids_execution(place.path):
                evidence = f"{place} lies on {mounts.mount_of(place.path)}: no code can be loaded from there."
                yield finding.error("noexec", evidence, places.elsewhere(place.variable))
    yield from _packages()


def _packages() -> Iterator[Finding]:
    """AOTInductor's are unpacked to the temporary directory, and loaded from there."""
    with suppress(FileNotFoundError):
        moves = provenance.torch_release() >= targets.PACKAGES_OBEY_TMPDIR_FROM
        directory = tempfile.gettempdir() if moves else "/tmp"
        if mounts.forbids_execution(directory):
            mount = mounts.mount_of(directory)
            evidence = f"AOTInductor packages are unpacked to {directory}, on {mount}, and cannot be loaded from there."
            point = mount.point if mount else directory
            remedy = places.elsewhere("TMPDIR") if moves else f"mount -o remount,exec {shlex.quote(point)}"
            yield finding.warning("noexec-packages", evidence, remedy)
