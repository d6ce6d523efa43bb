"""The files that vLLM keeps beside torch's caches: models, artifacts, its table of those, what classes of models can
do, and accounts of what it did.

By the table vLLM finds the artifact of each graph, so it is attested like code; it reads none of the accounts. A model,
and all artifacts with their table, are what a remote keeps of them.
Source: vllm/compilation/backends.py, the same in vLLM 0.20 to 0.33.

SGLang has an early copy of that code, for piecewise graphs, which one can ask for up to 0.5.21. A table that does not
parse ends the server, which never looks anything up in it. Source: sglang/srt/compilation/backend.py.
"""

from __future__ import annotations

import hashlib
import io
import json
import locale
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any

from safecache.built_code import kept_code
from safecache.entries import artifacts, loading
from safecache.errors import RefusedArtifactError
from safecache.fs import folders
from safecache.places import layout
from safecache.places.layout import CodeFile
from safecache.places.refs import Ref
from safecache.ports import plugs
from safecache.reporting import events, report
from safecache.reporting.kinds import Kind, Reason
from safecache.reporting.report import Refusal
from safecache.store import bundles, entry_files, gate
from safecache.tiers.directory_faults import Unreadable

__all__ = [
    "ACCOUNTS",
    "TABLE",
    "UNUSED_TABLE",
    "Written",
    "attest_artifact",
    "fetch_artifacts",
    "fetch_model",
    "find_bundles",
    "is_account",
    "keep_model_info",
    "make_empty_table",
    "open_table",
    "place_artifact",
    "read_model_info",
    "require_parts",
    "send_model",
]

TABLE = layout.VLLM_TABLE
ACCOUNTS = ("cache_key_factors.json", "computation_graph.py")
UNUSED_TABLE = "sglang_compile_cache.py"
_OF_SGLANG = re.compile(rf"{re.escape(UNUSED_TABLE)}|computation_graph_\d+\.\d+\.py")
_EMPTY = "{}"
# Below that, whatever a model was compiled from is in the hash. In a directory that a user has chosen it is not.
_MODEL = re.compile(r"torch_aot_compile/[0-9a-f]{64}/rank_\d+_\d+/model")
_PART = re.compile(r"[0-9a-f]{10}/rank_\d+_\d+/\w+")
_RANK = re.compile(r"rank_\d+_\d+")


def _find_root(path: str) -> str:
    """Return what a table's record names it from: <root>/<hash of all that vLLM's key has>/rank_0_0/<part>/<table>.

    A directory that a user has chosen is the root itself.
    """
    chosen = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(path))))
    above = os.path.dirname(chosen)
    return above if os.path.basename(above) == layout.VLLM_FOLDER else chosen


def is_account(name: str) -> bool:
    """Tell whether a file of this name is written for people to read, by vLLM or by SGLang."""
    return name in ACCOUNTS or _OF_SGLANG.fullmatch(name) is not None


def make_empty_table() -> io.StringIO:
    """Return a file with an empty table, which SGLang can use like any of its own: it never looks anything up there."""
    return io.StringIO(_EMPTY)


def fetch_model(path: str) -> None:
    """Fetch the model that vLLM looks for at ``path`` from a tier, if it is missing; its reader verifies it again.

    Does nothing for a path of another form. Raises the reason's error in strict mode.
    """
    root, key = _split_path(path, _MODEL)
    if key and not os.path.lexists(path):
        with events.propagate_strict():
            bundles.fetch(Ref(Kind.AOT_FUNCTION, key, root))


def send_model(path: str) -> None:
    """Send the file that vLLM has just published at ``path`` to the tiers, if it is a model."""
    root, key = _split_path(path, _MODEL)
    if key:
        plugs.tiers.keep(Ref(Kind.AOT_FUNCTION, key, root), again=True)


def require_parts(names: Collection[str]) -> None:
    """Report a vLLM model whose compiled parts have no ``names``, and raise RefusedArtifactError in default mode too.

    VLLM would take it for loaded, and run eagerly from then on (https://github.com/vllm-project/vllm/pull/56879).
    """
    if names:
        return
    with artifacts.raise_on_refusal(), events.propagate_strict():
        evidence = "no compiled part is in it, so that vLLM would run the model eagerly, at this and every start"
        refusal = Refusal(Reason.EMPTY, evidence, "vLLM recompiles it, and replaces it.")
        report.refuse(refusal, Kind.AOT_FUNCTION, "of vLLM")
        raise RefusedArtifactError(f"safecache: {events.list_refusals()[-1]}")


def find_bundles(root: str) -> Iterator[Ref]:
    """Yield unverified refs of models, and of tables with artifacts, in vLLM's cache ``root``. Raises OSError."""
    for item in folders.walk_files(root):
        path = os.path.relpath(item.path, root)
        part, name = os.path.split(path)
        if _MODEL.fullmatch(path):
            yield Ref(Kind.AOT_FUNCTION, path, root)
        elif name == TABLE and _PART.fullmatch(part):
            yield Ref(Kind.TABLE, part, root)


def _split_path(path: str, pattern: re.Pattern[str]) -> tuple[str, str]:
    """The cache that it lies in, and its path from there, which is all that vLLM looks it up by; "" if that differs."""
    root, separator, below = os.path.abspath(path).rpartition(f"/{layout.VLLM_FOLDER}/")
    return (f"{root}/{layout.VLLM_FOLDER}", below) if separator and pattern.fullmatch(below) else ("", "")


def fetch_artifacts(directory: str) -> None:
    """Fetch the table of vLLM's ``directory``, with all artifacts, from a tier, if the table is missing.

    Does nothing for a directory of another form. Raises the reason's error in strict mode.
    """
    root, key = _split_path(directory, _PART)
    if key and not os.path.lexists(os.path.join(directory, TABLE)):
        with events.propagate_strict():
            bundles.fetch(Ref(Kind.TABLE, key, root))


def attest_artifact(path: str) -> None:
    """Attest that vLLM's artifact, just saved, belongs at ``path``: what is sealed in it would fit any other path."""
    if _is_artifact(path) and os.path.isfile(path):
        with suppress(OSError):  # without a record it is neither used, nor sent, nor packed
            gate.attest_file(CodeFile(path, _find_root(path), Kind.TABLE))


def place_artifact(path: str) -> str:
    """Return where to load vLLM's artifact at ``path`` from, once its record says that it belongs there.

    Raises RefusedArtifactError, in default mode too: vLLM compiles then. An unpacked artifact, which is a directory,
    has no record: ``path`` is returned.
    """
    if not _is_artifact(path) or not os.path.isfile(path):
        return path
    with artifacts.raise_on_refusal(), events.propagate_strict():
        content = loading.read_unverified(Kind.TABLE, path)
        refusal = (
            _find_objection(CodeFile(path, _find_root(path), Kind.TABLE), content) if content is not None else None
        )
        if refusal is not None:
            remedy = "vLLM recompiles it, and replaces it."
            report.refuse(refusal._replace(cause="artifact"), Kind.TABLE, path, remedy)
        if content is None or refusal is not None:
            raise RefusedArtifactError(f"safecache: {events.list_refusals()[-1]}")
    return gate.make_private_path(CodeFile(path, kind=Kind.TABLE), content)


def _is_artifact(path: str) -> bool:
    above, name = os.path.split(path)
    return (
        layout.VLLM_ARTIFACT.fullmatch(name) is not None
        and _RANK.fullmatch(os.path.basename(os.path.dirname(above))) is not None
    )


def open_table(path: str) -> io.StringIO:
    """Return the table at ``path`` as a file; an empty one in place of any that is not attested, which is reported.

    Raises the reason's error in strict mode.
    """
    with events.propagate_strict():
        content = loading.read_unverified(Kind.TABLE, path)
        if content is None:
            return make_empty_table()
        refusal = _find_objection(CodeFile(path, _find_root(path), Kind.TABLE), content)
        if refusal is not None:
            remedy = "vLLM recompiles what it lists, and replaces it."
            report.refuse(refusal, Kind.TABLE, path, remedy)
            return make_empty_table()
    return io.StringIO(content.decode(locale.getpreferredencoding(False)))


def _find_objection(
    file: CodeFile, content: bytes, objection: Callable[[Mapping[str, Any]], Refusal | None] = lambda _: None
) -> Refusal | None:
    try:
        return gate.judge_content(file, hashlib.sha256(content).digest(), objection=objection)
    except Unreadable as error:
        return Refusal(Reason.UNREADABLE, error.evidence)


def read_model_info(path: str, key: str) -> bytes | None:
    """Return the content of vLLM's file at ``path`` about a model's class; None if vLLM has to inspect the class.

    ``key``: names all that decides about the content. If the file is for another key, or is refused, a kept copy in
    Inductor's cache or a tier replaces it. Raises the reason's error in strict mode.
    """

    def is_other(stated: Mapping[str, Any]) -> Refusal | None:
        return (
            None if stated.get("of") == key else Refusal(Reason.STALE, "it is of another version of vLLM or its model")
        )

    file = CodeFile(path, os.path.dirname(path), Kind.TABLE)
    with events.propagate_strict():
        content = loading.read_unverified(Kind.TABLE, path)
        refusal = None
        if content is not None:
            refusal = _find_objection(file, content, is_other)
            if refusal is not None and refusal.reason is not Reason.STALE:
                report.refuse(refusal, Kind.TABLE, path, "vLLM looks at the model's class again, and replaces it.")
        if content is None or refusal is not None:
            kept = kept_code.fetch(_locate_info(key))
            if kept is None:
                return None
            content = kept[0]
            _write_info(file, content, key)
    return content


def keep_model_info(path: str, key: str, info: Mapping[str, Any]) -> None:
    """Write ``info`` about a model's class to vLLM's ``path``, attest it, and copy it to Inductor's cache and tiers.

    ``key``: names all that decides about it. A failure to write is reported; strict mode raises CacheWriteError.
    """
    content = json.dumps(info, indent=2).encode()
    if _write_info(CodeFile(path, os.path.dirname(path), Kind.TABLE), content, key):
        kept_code.keep(_locate_info(key), path, hashlib.sha256(content).digest())


def _locate_info(key: str) -> Ref:
    return kept_code.locate(f"vLLM's model {key}", ".o")


def _write_info(file: CodeFile, content: bytes, key: str) -> bool:
    try:
        gate.attest_file(file, content, {"of": key})
        entry_files.publish(file.path, content, file.root)
    except OSError as error:
        again = "The next start looks at the model's class again."
        report.fail_write(f"write vLLM's {file.path}", error, again, file.root, "VLLM_CACHE_ROOT")
        return False
    return True


class Written(io.StringIO):
    """File of vLLM or SGLang that is being written: close() publishes it whole, or not at all.

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
            _publish_file(self._path, content.encode(locale.getpreferredencoding(False)))


def _publish_file(path: str, content: bytes) -> None:
    root = _find_root(path)
    is_table = os.path.basename(path) == TABLE
    # A table without a record would be refused at each start; that there is none is reported already.
    written = not is_table or gate.attest_file(CodeFile(path, root, Kind.TABLE), content)
    try:
        if written:
            entry_files.replace(path, content)
            directory = os.path.dirname(path)
            key = _split_path(directory, _PART)[1]
            if is_table and key:
                plugs.tiers.keep(Ref(Kind.TABLE, key, root), again=True)
    except OSError as error:
        written = False
        if _OF_SGLANG.fullmatch(os.path.basename(path)):
            report.fail_write(f"write SGLang's {path}", error, "SGLang runs without it.", root, "SGLANG_CACHE_DIR")
        else:
            report.fail_write(f"write vLLM's {path}", error, "The next start recompiles.", root, "VLLM_CACHE_ROOT")
    finally:
        if not written:
            with suppress(OSError), folders.open_subdirectory(os.path.dirname(path)) as folder:  # there is none
                folder.unlink(os.path.basename(path))
