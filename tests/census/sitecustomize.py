"""Found first by every Python of the census: writes down what is attested, and what is unpickled, compiled or loaded.

One line of JSON each in $CENSUS_LOG: ["attested", digest] for content that a trusted seal or this process itself attests
for, ["read", path, digest] as a file is opened, ["used", by, what, digest] as content reaches one of what runs it.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import sys
import threading

BELOW = os.environ["CENSUS_BELOW"]
_log = os.open(os.environ["CENSUS_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
_thread = threading.local()
# Contents that are attested in this process, or were pickled by it: what is unpickled may be a part of one.
_contents: list[bytes] = []
# Digests of the files that this process has opened.
_read: set[str] = set()


def _say(*row: str) -> None:
    os.write(_log, json.dumps(row).encode() + b"\n")


def _attest(content: bytes) -> None:
    _contents.append(bytes(content))
    _say("attested", hashlib.sha256(content).hexdigest())


class _Digests(set):
    def add(self, digest):
        super().add(digest)
        _say("attested", digest.hex())

    def update(self, *others):
        for digest in frozenset().union(*others):
            self.add(digest)


class _Known(dict):
    """The digests by path of safecache.store.attestations."""

    def __setitem__(self, path, digests):
        kept = _Digests()
        kept.update(digests)
        super().__setitem__(path, kept)

    def setdefault(self, path, digests):
        if path not in self:
            self[path] = digests
        return self[path]


def _watch_gate() -> None:
    """As soon as safecache's modules are there, and so before they have let anything through."""
    attesting = sys.modules.get("safecache.store.attestations")
    if not hasattr(attesting, "verified_digest") or isinstance(attesting._state.now.known, _Known):
        return
    state = attesting._state.now
    known, state.known = state.known, _Known()
    for path, digests in known.items():
        state.known[path] = digests
    seal = sys.modules["safecache.signing.seal"]
    verify, inspect = seal.verify, seal.inspect

    def verify_watched(content, kind, cache_key, *rest):
        verdict = verify(content, kind, cache_key, *rest)
        if verdict.reason is None:
            _attest(content)
            _say("attested", cache_key)  # that of a precompiled function is the digest of its source
            _say_stated(seal.strip_unverified(content))
        return verdict

    def inspect_watched(end, *rest, **named):
        """Of a package, whose digest is compared with the one in its footer."""
        verdict = inspect(end, *rest, **named)
        if verdict.reason is None:
            _say("attested", seal.split_unverified(end).digest.hex())
        return verdict

    seal.verify, seal.inspect = verify_watched, inspect_watched


def _say_stated(payload: bytes) -> None:
    """What a record states of other files."""
    try:
        stated = json.loads(payload)
    except (ValueError, RecursionError):
        return
    if isinstance(stated, dict):
        files = stated.get("files")
        for digest in [stated.get("sha256"), *(files.values() if isinstance(files, dict) else ())]:
            if isinstance(digest, str):
                _say("attested", digest)


def _hook(event, arguments):
    if event not in _NOTES or getattr(_thread, "busy", False):
        return
    _thread.busy = True
    try:
        _watch_gate()
        _NOTES[event](arguments)
    finally:
        _thread.busy = False


def _is_below(path) -> bool:
    return isinstance(path, str) and path.startswith(BELOW)


def _digest(path) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return ""


def _opened(arguments):
    path, _, flags = arguments
    if _is_below(path) and not flags & (os.O_WRONLY | os.O_TRUNC | os.O_EXCL):
        digest = _digest(path)
        _read.add(digest)
        _say("read", path, digest)


def _loaded(by, path):
    if _is_below(path):
        _say("used", by, path, _digest(path))


def _compiled(arguments):
    source, path = arguments
    if isinstance(source, (str, bytes)):
        digest = hashlib.sha256(source.encode() if isinstance(source, str) else source).hexdigest()
        if _is_below(path) or digest in _read:
            _say("used", "compile", str(path), digest)


_NOTES = {
    "open": _opened,
    "compile": _compiled,
    "ctypes.dlopen": lambda arguments: _loaded("dlopen", arguments[0]),
    # Of an extension module: its name, and its file.
    "import": lambda arguments: _loaded("import", arguments[1]),
}


def _unpickled(content) -> None:
    content = bytes(content)
    if not any(content in attested for attested in _contents):
        caller = sys._getframe(2).f_code
        _say("used", "unpickle", f"{caller.co_filename}:{caller.co_name}", hashlib.sha256(content).hexdigest())


def _rest(file) -> bytes | None:
    """What is still to be read of it, if it can be read twice."""
    if not hasattr(file, "seekable") or not file.seekable():
        return None
    place = file.tell()
    content = file.read()
    file.seek(place)
    return content


_loads, _dumps, _load = pickle.loads, pickle.dumps, pickle.load


def loads(content, /, **named):
    _unpickled(content)
    return _loads(content, **named)


def load(file, **named):
    content = _rest(file)
    if content is not None:
        _unpickled(content)
    return _load(file, **named)


def dumps(*rest, **named):
    content = _dumps(*rest, **named)
    _attest(content)
    return content


class Unpickler(pickle.Unpickler):
    def __init__(self, file, **named):
        super().__init__(file, **named)
        content = _rest(file)
        if content is not None:
            _unpickled(content)


class Pickler(pickle.Pickler):
    def __init__(self, file, *rest, **named):
        super().__init__(file, *rest, **named)
        self._watched = file

    def dump(self, value):
        super().dump(value)
        if hasattr(self._watched, "getvalue"):
            _attest(self._watched.getvalue())


pickle.loads, pickle.load, pickle.dumps = loads, load, dumps
pickle.Unpickler, pickle.Pickler = Unpickler, Pickler
sys.addaudithook(_hook)
