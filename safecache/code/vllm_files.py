"""The text files that vLLM keeps beside what it compiles: its table of artifacts, and accounts of what it did.

By the table vLLM finds the artifact of each graph, so it is attested like code; it reads none of the accounts.
Source: vllm/compilation/backends.py, the same in vLLM 0.20 to 0.33.

SGLang has an early copy of that code, for piecewise graphs, which one can ask for up to 0.5.21. A table that does not
parse ends the server, which never looks anything up in it. Source: sglang/srt/compilation/backend.py.
"""

from __future__ import annotations

import hashlib
import io
import locale
import os
import re
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

__all__ = ["ACCOUNTS", "TABLE", "UNUSED_TABLE", "Written", "empty_table", "is_account", "table"]

TABLE = "vllm_compile_cache.py"
ACCOUNTS = ("cache_key_factors.json", "computation_graph.py")
UNUSED_TABLE = "sglang_compile_cache.py"
_OF_SGLANG = re.compile(rf"{re.escape(UNUSED_TABLE)}|computation_graph_\d+\.\d+\.py")
_EMPTY = "{}"
_FOLDER = "torch_compile_cache"
_REMEDY = "Make room there, or set {} to another place."


def _root(path: str) -> str:
    """What a table's record names it from: <root>/<hash of all that vLLM's key has>/rank_0_0/<part>/<table>.

    A directory that a user has chosen is the root itself.
    """
    chosen = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(path))))
    above = os.path.dirname(chosen)
    return above if os.path.basename(above) == _FOLDER else chosen


def is_account(name: str) -> bool:
    """Whether a file of this name is written for people to read, by vLLM or by SGLang."""
    return name in ACCOUNTS or _OF_SGLANG.fullmatch(name) is not None


def empty_table() -> io.StringIO:
    """What does as well as SGLang's table, whatever is in that."""
    return io.StringIO(_EMPTY)


def table(path: str) -> io.StringIO:
    """The table at ``path``, and an empty one in place of any that is not attested, which is reported.

    Raises the reason's error in strict mode.
    """
    with events.reading():
        content = loading.read(Kind.TABLE, path)
        if content is None:
            return empty_table()
        refusal = _objection(path, content)
        if refusal is not None:
            remedy = "What it lists is compiled again, and vLLM replaces it."
            loading.note(refusal.reason, Kind.TABLE, path, refusal.evidence, remedy)
            return empty_table()
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
        if _OF_SGLANG.fullmatch(os.path.basename(path)):
            text = f"SGLang's {path} was not written: {error.strerror}. It goes on without."
            remedy = _REMEDY.format("SGLANG_CACHE_DIR")
        else:
            text = f"vLLM's {path} was not written: {error.strerror}. It goes on, and compiles again at the next start."
            remedy = _REMEDY.format("VLLM_CACHE_ROOT")
        events.report(Reason.UNWRITABLE, text, cause=f"{error.errno} {root}", remedy=remedy, error=error)
    finally:
        if not written:
            with suppress(OSError), folders.opened(os.path.dirname(path)) as folder:  # there is none
                folder.unlink(os.path.basename(path))
