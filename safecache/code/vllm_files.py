"""The text files that vLLM keeps beside what it compiles: its table of artifacts, and accounts of what it did.

By the table vLLM finds the artifact of each graph, so it is attested like code; it reads none of the accounts.
Source: vllm/compilation/backends.py, the same in vLLM 0.20 to 0.33.
"""

from __future__ import annotations

import hashlib
import io
import locale
import os
from contextlib import suppress
from types import TracebackType

from safecache.code import gate
from safecache.entries import loading
from safecache.files import folders
from safecache.reporting import events
from safecache.reporting.kinds import Kind, Reason
from safecache.signing.trust import Refusal
from safecache.store import entry_files, manifests
from safecache.tiers.directory_faults import Unreadable

__all__ = ["ACCOUNTS", "TABLE", "Written", "table"]

TABLE = "vllm_compile_cache.py"
ACCOUNTS = ("cache_key_factors.json", "computation_graph.py")
_EMPTY = "{}"
_FOLDER = "torch_compile_cache"
_REMEDY = (
    "vLLM goes on, and compiles again at the next start. Make room there, or set VLLM_CACHE_ROOT to another place."
)


def _root(path: str) -> str:
    """What a table's record names it from: <root>/<hash of all that vLLM's key has>/rank_0_0/<part>/<table>.

    A directory that a user has chosen is the root itself.
    """
    chosen = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(path))))
    above = os.path.dirname(chosen)
    return above if os.path.basename(above) == _FOLDER else chosen


def table(path: str) -> io.StringIO:
    """The table at ``path``, and an empty one in place of any that is not attested, which is reported.

    Raises the reason's error in strict mode.
    """
    with events.reading():
        content = loading.read(Kind.TABLE, path)
        if content is None:
            return io.StringIO(_EMPTY)
        refusal = _objection(path, content)
        if refusal is not None:
            remedy = "What it lists is compiled again, and vLLM replaces it."
            loading.note(refusal.reason, Kind.TABLE, path, refusal.evidence, remedy)
            return io.StringIO(_EMPTY)
    return io.StringIO(content.decode(locale.getpreferredencoding(False)))


def _objection(path: str, content: bytes) -> Refusal | None:
    root = _root(path)
    if gate.is_known(path, content):
        return None
    try:
        record = manifests.stored(path, root, Kind.TABLE)
    except Unreadable as error:
        return Refusal(Reason.UNREADABLE, error.evidence)
    return gate.judge_by_record(record, path, Kind.TABLE, hashlib.sha256(content).digest(), root)


class Written(io.StringIO):
    """One of these files, being written: it is there whole or not at all once it is closed.

    A failed write is reported, and raises only in strict mode: what was compiled is good without it.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path
        self._is_whole = True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._is_whole = kind is None
        self.close()

    def close(self) -> None:
        """Publish what was written, unless an exception has ended the block."""
        content = None if self.closed or not self._is_whole else self.getvalue()
        super().close()
        if content is not None:
            _publish(self._path, content.encode(locale.getpreferredencoding(False)))


def _publish(path: str, content: bytes) -> None:
    root = _root(path)
    # A table without a record would be refused at each start; that there is none is reported already.
    written = os.path.basename(path) != TABLE or gate.keep(path, root, Kind.TABLE, content)
    try:
        if written:
            entry_files.replace(path, content)
    except OSError as error:
        written = False
        text = f"vLLM's {path} was not written: {error.strerror}."
        events.report(Reason.UNWRITABLE, text, cause=f"{error.errno} {root}", remedy=_REMEDY, error=error)
    finally:
        if not written:
            with suppress(OSError), folders.opened(os.path.dirname(path)) as folder:  # there is none
                folder.unlink(os.path.basename(path))
