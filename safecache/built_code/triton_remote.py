"""Triton's own remote cache: each file travels with its record, and is verified before it is kept here.

The record lies next to its file, under a name that stock Triton never asks for, so that stock reads what is sent here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from safecache.built_code import triton_files
from safecache.built_code.triton_place import LIST, Place, is_plain
from safecache.reporting import events, report
from safecache.reporting.kinds import Count, Kind, Reason
from safecache.reporting.report import Refusal
from safecache.store import gate, manifests
from safecache.tiers import directory_faults

__all__ = ["RECORD", "Backend", "accept"]

# What the name of a file's record ends in.
RECORD = ".safecache-record"
_REMEDY = "Recompiling it; the new file replaces it there."


class Backend:
    """Backend ``theirs`` of Triton's remote cache, wrapped: files travel with their records, and are verified here.

    ``directory``: where files of its key are in the cache. An error of the backend is a miss, or something that is not
    sent; strict mode raises it. Files that are here are used while it does not answer: Triton would recompile them.
    """

    def __init__(self, theirs: Any, directory: str) -> None:
        self._theirs, self._place = theirs, Place(directory)
        # By name: records that have come with files, and the digests that the record of a list states.
        self._records: dict[str, bytes] = {}
        self._listed: dict[str, str] = {}
        # What was found here instead.
        self._here: dict[str, str] = {}

    def __getattr__(self, name: str) -> Any:
        if name == "_theirs":  # in a copy that is being made
            raise AttributeError(name)
        return getattr(self._theirs, name)

    @property
    def _server(self) -> Any:
        """Client of a backend that the hooks know, a remote.hooks.Redis; None for any other backend."""
        return getattr(self._theirs, "_redis", None)

    @property
    def shown(self) -> str:
        """Name of the backend for messages."""
        return f"Triton's remote cache {getattr(self._server, 'shown', type(self._theirs).__name__)}"

    def get(self, filenames: Iterable[str]) -> dict[str, bytes]:
        """The files of these names that it has; their records are asked for at the same time."""
        names = list(filenames)
        records = [name + RECORD for name in names if name not in self._listed]
        try:
            found = dict(self._theirs.get(names + records))
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            self._report_refusal(Reason.REMOTE_FAILED, f"{', '.join(names)[:100]} of", text, error)
            return self._read_unverified_local(names)
        if not getattr(self._server, "answered", True):
            return self._read_unverified_local(names)
        self._records |= {name: record for name in names if isinstance(record := found.get(name + RECORD), bytes)}
        return {name: content for name in names if isinstance(content := found.get(name), bytes)}

    def _read_unverified_local(self, names: Iterable[str]) -> dict[str, bytes]:
        for name in names:
            if name.startswith(LIST):
                files = self._place.take_group(name.removeprefix(LIST)) or {}
                self._here |= files
                self._here |= {name: self._place.name_path(name)} if files else {}
            elif name not in self._here and is_plain(name) and (found := self._place.take(name)) is not None:
                self._here[name] = found
        contents = {name: self._place.read_unverified(self._here[name]) for name in names if name in self._here}
        return {name: content for name, content in contents.items() if content is not None}

    def put(self, filename: str, data: bytes) -> None:
        """Send a file that this process has made; not without its record, which would refuse it for the others."""
        record = triton_files.make_record(self._place.directory, filename, data)
        if record is None:
            return
        try:
            self._theirs.put(filename + RECORD, record)
            self._theirs.put(filename, data)
        except Exception as error:
            text, why = (
                f"did not send {Kind.KERNEL.noun} {filename} to {self.shown}",
                f"{type(error).__name__}: {error}",
            )
            remedy = "Other hosts compile that file. Help: safecache doctor"
            cause = f"put {self.shown}"
            events.report(Reason.REMOTE_FAILED, text, why=why, cause=cause, remedy=remedy, error=error)

    def accept(self, name: str, content: bytes) -> str | None:
        """Keep a file that it has delivered, and the path to read it at; None, and reported, if nothing attests it."""
        try:
            refusal = self._find_objection(name, content)
        except directory_faults.Unreadable as error:
            self._report_refusal(Reason.UNREADABLE, f"{name} of", error.evidence, error)
            return None
        if refusal is None:
            record, is_listed = self._records.get(name), name in self._listed
            if not is_listed:
                events.count(Count.CODE_VERIFIED)
            return triton_files.accept(self._place.directory, name, content, record, is_listed=is_listed)
        self._report_refusal(refusal.reason, f"{name[:100]} of", refusal.evidence)
        return None

    def _find_objection(self, name: str, content: bytes) -> Refusal | None:
        if not is_plain(name):
            return Refusal(Reason.UNSAFE_NAME, "its name would leave the directory of its key")
        file, digest = self._place.name_file(self._place.name_path(name)), hashlib.sha256(content)
        if name in self._listed:
            is_it = self._listed[name] == digest.hexdigest()
            return None if is_it else Refusal(Reason.DAMAGED, "its digest is not the one in the record of its group")
        record = self._records.get(name)
        refusal = gate.judge_content(file, digest.digest(), (record,), is_private=False)
        if refusal is None:
            self._learn_digests(name, manifests.verify(record, file)[1])
            return None
        self._records.pop(name, None)
        if gate.judge_content(file, digest.digest(), is_private=False) is None:
            self._learn_digests(name, manifests.read(file)[1])
            return None
        if record is None:
            return refusal._replace(evidence="there is no record of it, as when stock Triton wrote it")
        return refusal

    def _learn_digests(self, name: str, stated: Mapping[str, object]) -> None:
        """The files of a list must be those of its own writer."""
        listed = stated.get("files")
        if name.startswith(LIST) and isinstance(listed, Mapping):
            self._listed = {str(file): str(digest) for file, digest in listed.items()}

    def _report_refusal(self, reason: Reason, of: str, evidence: str, error: BaseException | None = None) -> None:
        refusal = Refusal(reason, evidence, _REMEDY, cause=f"{Kind.KERNEL.value} {self.shown}")
        report.refuse(refusal, Kind.KERNEL, f"{of} {self.shown}", error=error)


def accept(backend: Any, directory: str, name: str, content: bytes) -> str | None:
    """Keep a file that ``backend``, wrapped or not, has delivered; return the path to read it at, or None if refused.

    Refusals are reported. ``directory``: where the files of its cache key are here. Raises OSError.
    """
    known = backend if isinstance(backend, Backend) else Backend(backend, directory)
    return known.accept(name, content)
