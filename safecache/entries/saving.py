"""Saves that cannot harm the compile: sealed where pickled, or given up with the path to the object to blame."""

from __future__ import annotations

import functools
import inspect
import io
import itertools
import pickle
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn
from weakref import WeakKeyDictionary

from safecache import compiles
from safecache.entries.searches import sum_compile_seconds
from safecache.errors import CacheWriteError
from safecache.places import layout
from safecache.places.refs import Ref
from safecache.ports import Saved, plugs, tell
from safecache.reporting import events
from safecache.reporting.kinds import ENTRIES, Count, Kind, Reason
from safecache.reporting.report import suggest_fix
from safecache.session import Part, inherit
from safecache.settings import config
from safecache.signing import keyring, provenance, seal
from safecache.store import directories, entry_files
from safecache.tiers import directory_faults, fallback

__all__ = [
    "Culprit",
    "SaveAborted",
    "abort_save",
    "blame",
    "can_seal",
    "describe_save_failure",
    "dump",
    "explain_unpicklable",
    "find_culprit",
    "forget_failure",
    "guard_save",
    "has_unsaved_key",
    "is_in_attempt",
    "report_unpicklable",
    "seal_payload",
    "write_entry",
]


class SaveAborted(BaseException):
    """Ends a save from inside torch's code. Not an Exception: torch's handlers would log their own warning first.

    Raised only inside an attempt, which always catches it.
    """

    def __init__(
        self, reason: Reason, message: str, *, cause: str, remedy: str, error: BaseException | None = None
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.cause = cause
        self.remedy = remedy
        self.error = error

    def report(self, what: str) -> None:
        """Report that ``what`` was not saved. Raises the reason's error in strict mode."""
        message = f"could not save {what}"
        events.report(self.reason, message, why=str(self), cause=self.cause, remedy=self.remedy, error=self.error)


class _Attempt:
    """A save that a thread is in the middle of."""

    def __init__(self, ref: Ref, root: object, state: Callable[[], dict[str, str]]) -> None:
        self.ref = ref
        self.state = state
        self.root = root
        self.pickled = False

    def convert_error(self, error: Exception) -> SaveAborted:
        """Return the SaveAborted that stands for an exception from torch's code."""
        if self.pickled:
            # Local writes of entries report their own failures: this is another file, the remote cache, or the like.
            message, reason = "it could not be stored everywhere", Reason.UNWRITABLE
            failed = _find_file_error(error)
            remedy = f"{_CONSEQUENCE} {suggest_fix(failed)}" if failed is not None else _REMOTE_REMEDY
        else:
            message, reason, remedy = "it could not be prepared", Reason.UNPREPARED, _PICKLE_REMEDY
        text = _describe_error(error)
        return SaveAborted(reason, f"{message}: {text}", cause=text, remedy=remedy, error=error)


def _find_file_error(error: BaseException) -> OSError | None:
    """Return the file system's error that torch may have wrapped in others; None if it is of something else."""
    root = error
    while root.__cause__ is not None:
        root = root.__cause__
    return root if isinstance(root, OSError) and root.filename is not None else None


class _State:
    def __init__(self) -> None:
        # By what a compile has made, why there is nothing to save of it.
        self.blamed: WeakKeyDictionary[object, str] = WeakKeyDictionary()
        # FX entries that this process failed to save: an AOT entry that refers to one would always miss.
        self.unsaved: set[str] = set()


_state: Part[_State] = Part(_State, inherit)

_CONSEQUENCE = "Other processes will recompile it."
_PICKLE_REMEDY = (
    "Every process recompiles this graph. Help: make the object picklable, or keep it out of the compiled graph"
)
_ARTIFACT_REMEDY = "Nothing can be saved. Help: make the object picklable, or keep it out of the compiled graph"
_KEY_REMEDY = (
    "Every process recompiles. Help: set SAFECACHE_KEY_FILE to a private key, or make $XDG_CONFIG_HOME writable"
)
_REMOTE_REMEDY = f"{_CONSEQUENCE} Help: safecache doctor"


@contextmanager
def guard_save(
    ref: Ref,
    root: object,
    parts: tuple[Ref, ...] | None = (),
    also: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[None]:
    """Guard torch's save of ``root`` in this block: report an exception, or in strict mode raise the reason's error.

    Foreign BaseExceptions pass through. ``parts``: the entries that it refers to, as for KeyPart.statement(). ``also``:
    what the seal states besides that and the build's provenance.
    """
    this = _Attempt(ref, root, lambda: {**plugs.key_part.build_fingerprint(ref, parts), **also})
    failure: SaveAborted | None = None
    try:
        with compiles.override_scope(save=this):
            yield
    except SaveAborted as aborted:
        failure = aborted
    except Exception as error:
        failure = this.convert_error(error)
    if this.pickled:
        _state.now.unsaved.discard(ref.key)
    if failure is not None:
        if not this.pickled:
            _state.now.unsaved.add(ref.key)
        if failure.reason is not Reason.INCOMPLETE:  # which follows from what failed before
            compiles.current.save_failure = str(failure)
        failure.report(ref.title)


def forget_failure() -> None:
    """Forget this thread's earlier save failure, as it begins another compile."""
    compiles.current.save_failure = ""


def blame(made: object) -> None:
    """Record why there is nothing to save of what this thread's compile has ``made``, if that is known."""
    if compiles.current.save_failure:
        _state.now.blamed[made] = compiles.current.save_failure


def describe_save_failure(made: object) -> str:
    """Return in words what blame() recorded of ``made``, with the remedy, or "" if it recorded nothing."""
    why = _state.now.blamed.get(made)
    return f"(safecache: {why}. {_ARTIFACT_REMEDY})" if why else ""


def explain_unpicklable(obj: object, name: str) -> str:
    """Return in words why ``obj``, called ``name``, cannot be pickled, with the remedy, or "" if it can be."""
    culprit = find_culprit(obj, name)
    return f"(safecache: {culprit}. {_ARTIFACT_REMEDY})" if culprit is not None else ""


def is_in_attempt() -> bool:
    """Tell whether this thread is inside a save: see guard_save()."""
    return compiles.current.save is not None


def has_unsaved_key(cache_keys: list[str]) -> bool:
    """Tell whether a save of one of these keys failed, so that an entry which refers to it always misses."""
    return not _state.now.unsaved.isdisjoint(cache_keys)


def abort_save(reason: Reason, error: BaseException | None = None) -> NoReturn:
    """End this thread's save for ``reason``, by raising SaveAborted.

    ``error``: the cause; None: an entry that this one refers to was not saved.
    """
    text = _describe_error(error) if error is not None else "a graph that it refers to was not"
    raise SaveAborted(reason, text, cause=text, remedy=_PICKLE_REMEDY, error=error)


def _describe_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def dump(obj: object, pickled: Callable[[], bytes]) -> bytes:
    """Return what ``pickled`` returns, sealed if ``obj`` is what this thread's guard_save() saves.

    Raises what ``pickled`` raises; for what is being saved, SaveAborted in its place.
    """
    this: _Attempt | None = compiles.current.save
    # By type, since FxGraphCache pickles a copy of the graph it was given.
    if this is None or type(obj) is not type(this.root):
        return _pickle_object(obj, pickled)
    try:
        content = _pickle_object(obj, pickled)
    except Exception as error:
        raise _make_pickle_failure(obj, error) from None
    this.pickled = True
    return _attach_seal(content, this.ref, this.state())


def seal_payload(payload: bytes, kind: Kind, cache_key: str = "", made: Any = None) -> bytes:
    """Return ``payload`` with a seal; unchanged if it has one or, as reported, there is no signing key.

    ``made``: as for KeyPart.statement(). Raises KeyringError without a key in strict mode.
    """
    if seal.split_unverified(payload) is not None or not can_seal(kind):
        return payload
    ref = Ref(kind, cache_key)
    return _attach_seal(payload, ref, plugs.key_part.build_fingerprint(ref, made=made))


def can_seal(kind: Kind) -> bool:
    """Tell whether there is a signing key, and report it if not. Raises KeyringError in strict mode."""
    keys = keyring.current()
    if keys.signing is not None:
        return True
    if keyring.has_stopped():
        return False  # what it saves is as stock torch's
    problem = keys.problem or "no key is available"
    why = f"no signing key: {problem}"
    events.report(Reason.NO_KEY, f"not saving {kind.noun}", why=why, cause=problem, remedy=_KEY_REMEDY)
    return False


def _pickle_object(obj: object, pickled: Callable[[], bytes]) -> bytes:
    try:
        return pickled()
    except Exception:
        # Again, if there are launchers: torch keeps their underlying functions for its fast path.
        launchers = sys.modules.get("safecache.launchers")
        if launchers is not None:
            with suppress(Exception):
                content: bytes = launchers.dumps(obj)
                return content
        raise


def report_unpicklable(obj: object, what: str, error: Exception) -> None:
    """Report that ``what`` was left out of an entry, since ``obj`` cannot be pickled.

    ``error``: what pickling raised. Strict mode raises UnpicklableEntryError.
    """
    _make_pickle_failure(obj, error).report(what)


def _make_pickle_failure(obj: object, error: Exception) -> SaveAborted:
    culprit = find_culprit(obj, "entry")
    if culprit is None:
        text = cause = _describe_error(error)
    else:
        text, cause = str(culprit), f"{culprit.type_name} {culprit.defined_at}"
    return SaveAborted(Reason.UNPICKLABLE, text, cause=cause, remedy=_PICKLE_REMEDY, error=error)


def _attach_seal(payload: bytes, ref: Ref, stated: Mapping[str, str]) -> bytes:
    keys = keyring.current()
    if keys.signing is None:
        return payload
    events.count(Count.SEALED)
    namespace = config.current().namespace
    return seal.attach(
        payload, ref.kind, ref.key, keys.signing, {**provenance.make_statement(ref.kind), **stated}, namespace
    )


def write_entry(ref: Ref, content: bytes) -> None:
    """Publish an entry in its cache and the tiers. A failed write is reported; strict mode raises.

    The error is SaveAborted in an attempt, else the reason's. An unsealed entry is only written with SAFECACHE=observe:
    every process would refuse it, and add another.
    """
    if seal.split_unverified(content) is None and not keyring.has_stopped():
        problem = keyring.current().problem or "it was not sealed"
        return _report_unwritten(SaveAborted(Reason.NO_KEY, problem, cause=problem, remedy=_KEY_REMEDY), ref)
    if not plugs.hit_check.is_new(ref, content):
        return None
    file = ref.name_file(layout.name_entry(content))
    try:
        entry_files.publish(file.path, content, ref.root)
    except OSError as error:
        if directory_faults.is_of_file_system(error) and fallback.replace_if_failed(error):
            # The rest of this compile, and later ones, go where this process may read them again.
            return write_entry(ref._replace(root=fallback.translate_path(ref.root, ref.root)), content)
        text = f"{file.path}: {error.strerror or error}"
        remedy = f"{_CONSEQUENCE} {suggest_fix(error)}"
        failure = SaveAborted(Reason.UNWRITABLE, text, cause=f"{error.errno} {ref.root}", remedy=remedy, error=error)
        return _report_unwritten(failure, ref)
    events.count(Count.SAVED)
    if ref.kind in ENTRIES:
        made = compiles.current.save.root if compiles.current.save is not None else None
        tell(Saved(ref, sum_compile_seconds(made)))
        if not keyring.has_stopped():
            plugs.tiers.keep(ref)
    if keyring.has_stopped():
        return None
    try:
        directories.send_content(file._replace(root=""), content)
    except CacheWriteError as error:
        if not is_in_attempt():
            raise
        raise SaveAborted(Reason.UNUSABLE_DIRECTORY, str(error), cause=ref.root, remedy="", error=error) from None


def _report_unwritten(failure: SaveAborted, ref: Ref) -> None:
    # In default mode the save goes on: its bytes may still reach the remote cache or an artifact.
    if config.current().strict and is_in_attempt():
        raise failure
    failure.report(ref.title)


_LONGEST_PATH = 12
_LONGEST_LABEL = 40


class Culprit(NamedTuple):
    """Object to blame. ``path``: an expression that reaches it, with "…" where it is very long."""

    path: str
    type_name: str
    defined_at: str
    error: BaseException

    def __str__(self) -> str:
        where = f", defined at {self.defined_at}" if self.defined_at else ""
        return f"{self.path} is a {self.type_name}{where}: {type(self.error).__name__}: {self.error}"


class _TracingPickler(pickle._Pickler):
    """Pickles as the C pickler does, and remembers the objects it was inside when it failed."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), protocol=pickle.DEFAULT_PROTOCOL)
        self.inside: list[Any] = []
        self.trail: list[Any] = []

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        self.inside.append(obj)
        try:
            super().save(obj, save_persistent_id)  # type: ignore[misc]  # not in typeshed
        except BaseException:
            if not self.trail:
                self.trail = list(self.inside)
            raise
        finally:
            self.inside.pop()


def find_culprit(root: Any, name: str) -> Culprit | None:
    """Return the object that makes ``pickle.dumps(root)`` raise, or None. ``name``: the root's name in the path.

    Pickles again, slowly: for use after a failure only. BaseExceptions that are not Exceptions pass through.
    """
    pickler = _TracingPickler()
    try:
        pickler.dump(root)
    except Exception as error:
        trail = pickler.trail or [root]
        return Culprit(_describe_path(trail, name), _name_type(trail[-1]), _find_definition(trail[-1]), error)
    return None


def _describe_path(trail: list[Any], name: str) -> str:
    labels = [name]
    parent = trail[0]
    between: list[Any] = []  # made by pickle on the way: a state, an argument tuple
    for child in trail[1:]:
        label = _find_label(parent, child)
        if label is None:
            between.append(child)
        else:
            labels.append(label)
            parent, between = child, []
    labels += [label for a, b in itertools.pairwise(between) if (label := _find_label(a, b)) is not None]
    if len(labels) > _LONGEST_PATH:
        half = _LONGEST_PATH // 2
        labels = [*labels[:half], f"…({len(labels) - _LONGEST_PATH} more)…", *labels[-half:]]
    return "".join(labels)


def _find_label(parent: Any, child: Any) -> str | None:
    """Return how ``child`` is reached from ``parent``; None if it is not."""
    for label, value in _iter_children(parent):
        if value is child:
            return label
    return None


def _iter_children(parent: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(parent, dict):
        for key, value in list(parent.items()):
            yield f"[{_shorten_value(key)}]", value
            yield f".keys()[{_shorten_value(key)}]", key
    elif isinstance(parent, (list, tuple)):
        fields = getattr(type(parent), "_fields", ())
        for index, value in enumerate(parent):
            yield (f".{fields[index]}" if index < len(fields) else f"[{index}]"), value
    elif isinstance(parent, (set, frozenset)):
        for value in list(parent):
            yield f"{{{_shorten_value(value)}}}", value
    elif isinstance(parent, functools.partial):
        yield from ((".func", parent.func), (".args", parent.args), (".keywords", parent.keywords))
    yield from _iter_attributes(parent)


def _iter_attributes(parent: Any) -> Iterator[tuple[str, Any]]:
    # By object's own lookup: a __getattr__ of the entry must not run, let alone raise.
    try:
        attributes = object.__getattribute__(parent, "__dict__")
    except AttributeError:
        attributes = {}
    if isinstance(attributes, dict):
        for key, value in list(attributes.items()):
            yield f".{key}", value
    for slot in itertools.chain.from_iterable(_list_slots(base) for base in type(parent).__mro__):
        try:
            yield f".{slot}", object.__getattribute__(parent, slot)
        except AttributeError:
            continue


def _list_slots(base: type) -> tuple[str, ...]:
    slots = base.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _shorten_value(value: Any) -> str:
    text = repr(value) if _is_plain(value) else _name_type(value)
    return text if len(text) <= _LONGEST_LABEL else text[:_LONGEST_LABEL] + "…"


def _is_plain(value: Any) -> bool:
    """Tell whether its repr runs no foreign code and cannot fail, as that of an int of 5000 digits does."""
    if type(value) is tuple:
        return all(_is_plain(item) for item in value)
    return type(value) in (str, bytes, bool, float, type(None)) or (type(value) is int and value.bit_length() < 64)


def _name_type(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _find_definition(value: Any) -> str:
    if type(value) is types.FunctionType:
        return f"{value.__code__.co_filename}:{value.__code__.co_firstlineno} ({value.__qualname__})"
    try:
        return inspect.getsourcefile(type(value)) or ""
    except (TypeError, OSError):
        return ""
