"""The compile goes on if its cache directory cannot be used: in a fallback directory, until the first one works.

What a cache lacks is looked for below it: in the shared tier below a local one, or the cache directory that a fallback
directory replaces; then in the directories of SAFECACHE_TIERS, which are never written.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TypeVar

from safecache.errors import SafecacheError
from safecache.fs import mounts, ownership, private_directory
from safecache.reporting import events, waits
from safecache.reporting.kinds import Reason
from safecache.session import Part, inherit
from safecache.settings import config
from safecache.tiers import directory_faults, levels
from safecache.tiers.directory_faults import Fault

__all__ = [
    "attempt",
    "begin",
    "end",
    "ensure_cache_directory",
    "fail_shared",
    "find_counterpart",
    "find_original",
    "iter_lower_paths",
    "leave_to_parent",
    "replace_if_failed",
    "translate_path",
]


_LATER = "Retrying in 60 s. Help: safecache doctor"


class _State:
    def __init__(self) -> None:
        self.standins: dict[str, str] = {}
        self.originals: dict[str, str] = {}
        # Directories that are not looked at again for a while, since they can be used, or cannot.
        self.good, self.bad = waits.Breaker(), waits.Breaker()
        self.faults: dict[str, Fault] = {}


_state: Part[_State] = Part(_State, inherit)


def find_original(directory: str) -> str | None:
    """Return the cache directory that ``directory`` is the fallback directory of; None if it is none."""
    return _state.now.originals.get(directory)


def find_counterpart(path: str) -> str | None:
    """Return the path for which ``path`` in a fallback directory, such as Triton's cache, stands; else None."""
    for place, directory in list(_state.now.originals.items()):
        if f"{path}/".startswith(f"{place}/"):
            return directory + path[len(place) :]
    return None


def begin(directory: str) -> str:
    """Have torch use a fallback directory for ``directory``, the same each time; returns it. Raises OSError."""
    with _state.lock:
        state = _state.now
        place = state.standins.get(directory)
        if place is None or not os.path.isdir(place):
            place = private_directory.create_lasting(_is_fit)
            state.standins[directory] = place
            state.originals[place] = directory
    config.redirect_cache(place, directory)
    return place


def _is_fit(place: str) -> bool:
    return directory_faults.probe(place) is None and (
        config.current().exec_dir is not None or not mounts.is_noexec(place)
    )


def end(directory: str) -> None:
    """Have torch use ``directory`` again."""
    config.redirect_cache(directory, None)


def _inherit() -> None:
    """Use the fallback directory that the parent process has begun, unless it has ended, and the directory is gone."""
    found = config.get_redirection()
    if found is None or found[0] != config.cache_directory() or levels.is_place(*found):
        return
    place, directory = found
    # Anybody could take its name once it is removed.
    if private_directory.join(place) and ownership.find_exposure(place) is None:
        state = _state.now
        state.standins[directory] = place
        state.originals[place] = directory
    else:
        end(directory)


_inherit()


_T = TypeVar("_T")
# Seconds for which a verdict on a directory is remembered.
_PATIENCE = 60.0
# Retrying a directory whose locks are not granted can take as long as the timeout: at most a sixth of the time.
_LOCK_PATIENCE = 5
_REMEDY = (
    "Help: free space, or fix permissions. If {0} is read-only on purpose, set SAFECACHE_TIERS={0} and"
    " TORCHINDUCTOR_CACHE_DIR to a writable directory"
)
_LOCAL_REMEDY = "Help: make {0} usable for this user alone, or name another before cache in SAFECACHE_TIERS"
_LOCK_REMEDY = (
    "Help: find the process that holds it, and whether it is frozen; SAFECACHE_WAIT=lock=SECONDS sets how long to wait"
)

_parent_tells = False


def ensure_cache_directory(default: Callable[[], str], *, strictly: bool = True) -> None:
    """Check that the cache directory can be used; if not, have torch use a fallback directory for now.

    ``default``: returns the directory if none is set. Checks at most once a minute. Raises CacheWriteError in strict
    mode, each time, if ``strictly`` and it is unusable.
    """
    directory = config.cache_directory() or default()
    if _state.now.good.get_seconds_left(directory):
        return
    directory = os.path.abspath(directory)
    replaced_one = find_original(directory)
    if replaced_one is not None:
        return _recheck_directory(replaced_one, directory, strictly=strictly)
    shared = levels.find_shared(directory)
    if not _use_local_level(shared, strictly=strictly):
        if shared != directory:
            config.redirect_cache(shared, None)
        _check_directory(shared, strictly=strictly)
        if config.current().strict and levels.find_place(shared) is not None:
            _state.now.good.leave_alone(shared, 0.0)  # the missing local tier is raised each time


def _use_local_level(shared: str, *, strictly: bool) -> bool:
    """Have torch use a local tier of ``shared`` if one is wanted and usable. Return whether it does."""
    place = levels.find_place(shared)
    if place is None:
        return False
    state = _state.now
    fault = state.faults.get(place)
    if not state.bad.get_seconds_left(place):
        fault = _find_fault(place, levels.find_objection)
        if fault is None:
            levels.begin(place, shared)
            directory_faults.note_private(place)
            state.good.leave_alone(place, _PATIENCE)
            return True
        _leave_local_level(place, shared, fault, None, strictly=strictly)
    elif fault is not None and strictly and config.current().strict:
        _leave_local_level(place, shared, fault, None, strictly=strictly)
    return False


def _leave_local_level(
    place: str, shared: str, fault: Fault, error: BaseException | None, *, strictly: bool = True
) -> bool:
    _remember_fault(place, fault)
    config.redirect_cache(shared, None)
    if strictly or not config.current().strict:  # otherwise torch may be in the middle of its import
        action = f"Using {shared} without a local tier."
        _report_fault(place, fault, f"cannot use the local tier {place}", action, error)
    return True


def _check_directory(directory: str, *, strictly: bool) -> None:
    fault = _find_fault(directory, directory_faults.find_objection)
    if fault is None:
        _state.now.good.leave_alone(directory, _PATIENCE)
    else:
        _replace_directory(directory, fault, None, strictly=strictly)


def _find_fault(directory: str, objection: Callable[[str], str | None]) -> Fault | None:
    against = objection(directory)
    if against is not None:
        return Fault(Reason.UNUSABLE_DIRECTORY, against)
    variable = "SAFECACHE_TIERS" if levels.is_local(directory) else "TORCHINDUCTOR_CACHE_DIR"
    against = directory_faults.find_code_objection(directory, variable)
    return None if against is None else Fault(Reason.NOT_EXECUTABLE, against)


def _recheck_directory(directory: str, place: str, *, strictly: bool) -> None:
    """Return to ``directory`` if it can be used by now, or stay with the fallback directory ``place``."""
    if not os.path.isdir(place):  # removed by a cleaner of temporary files, or with the process that made it
        end(directory)
        return _check_directory(directory, strictly=strictly)
    state = _state.now
    fault = state.faults.get(directory)
    if not state.bad.get_seconds_left(directory):
        fault = _find_fault(directory, directory_faults.probe)
        if fault is None:
            end(directory)
            return
        _remember_fault(directory, fault)
    if fault is not None and strictly and config.current().strict:
        _replace_directory(directory, fault, None, strictly=strictly)


def attempt(work: Callable[[], _T]) -> _T:
    """Return what ``work`` returns. Call it once more if the cache directory made it fail and was replaced.

    Raises any other error unchanged, and CacheWriteError in strict mode if the cache directory was to blame.
    """
    try:
        return work()
    except Exception as error:
        if not replace_if_failed(error):
            raise
    return work()


def replace_if_failed(error: BaseException | None) -> bool:
    """Tell whether the cache directory made an operation fail; have torch use another directory from then on.

    ``error``: what the operation raised; None if it failed without. Raises CacheWriteError in strict mode.
    """
    directory = config.cache_directory()
    if directory is None or isinstance(error, SafecacheError):
        return False
    before = find_original(directory)
    if before is not None:
        # Another thread may have replaced it meanwhile; a fallback directory has no fallback.
        return error is not None and directory_faults.find(error, before) is not None
    fault = directory_faults.find(error, directory) if error is not None else None
    fault = fault or _find_fault(directory, directory_faults.probe)
    if fault is None:
        return False
    shared = levels.find_shared(directory)
    if shared != directory:
        return _leave_local_level(directory, shared, fault, error)
    return _replace_directory(directory, fault, error)


def translate_path(path: str, root: str) -> str:
    """Return the path in the current cache directory that corresponds to ``path`` in the cache ``root``."""
    return os.path.normpath(os.path.join(config.cache_directory() or root, os.path.relpath(path, root)))


def _replace_directory(directory: str, fault: Fault, error: BaseException | None, *, strictly: bool = True) -> bool:
    _remember_fault(directory, fault)
    strict = config.current().strict
    # Of a lock that is held, or a noexec mount, the directory itself may well be writable.
    message = f"cannot {'write to' if fault.reason is Reason.UNUSABLE_DIRECTORY else 'use'} cache directory {directory}"
    if strict and strictly:
        _report_fault(directory, fault, message, "", error)
    try:
        place = begin(directory)
    except OSError as failure:
        if strictly or not strict:  # otherwise torch may be in the middle of its import
            _report_fault(directory, fault, f"{message}, and no other directory can be used ({failure})", "", error)
        return False
    if not strict:
        action = f"Reading existing entries; new ones go to {place} and are deleted when this process exits."
        _report_fault(directory, fault, message, action, error)
    return True


def _remember_fault(directory: str, fault: Fault) -> None:
    patience = _PATIENCE
    if fault.reason is Reason.LOCK_HELD:
        patience = max(patience, _LOCK_PATIENCE * config.current().lock_timeout)
    state = _state.now
    state.good.leave_alone(directory, 0.0)
    state.bad.leave_alone(directory, patience)
    state.faults[directory] = fault


def _report_fault(directory: str, fault: Fault, message: str, action: str, error: BaseException | None) -> None:
    if not _parent_tells or config.current().strict:
        remedy = _LOCAL_REMEDY if levels.is_local(directory) else _REMEDY
        remedy = _LOCK_REMEDY if fault.reason is Reason.LOCK_HELD else remedy
        remedy = f"{action} {remedy.format(directory)}".lstrip()
        events.report(fault.reason, message, why=fault.text, cause=directory, remedy=remedy, error=error)


def leave_to_parent() -> None:
    """Suppress this module's warnings in this process, one of many workers, whose parent uses the same directory."""
    global _parent_tells
    _parent_tells = True


def iter_lower_paths(path: str, root: str) -> Iterator[tuple[str, str]]:
    """Yield (path, tier) for ``path`` of the cache ``root`` in each tier below that cache, nearest first.

    Such a file need not exist, and is not verified. Strict mode raises CacheWriteError if the shared tier cannot be
    used, EntryRefusedError if others can write to it.
    """
    level, original, named = levels.find(root), find_counterpart(root), config.current().layers
    if level is not None and _is_there(level.shared):
        yield level.find_counterpart(path), level.find_counterpart(root)
    for layer in named if original is None else (original, *named):
        if layer != root:
            yield os.path.join(layer, os.path.relpath(path, root)), layer


def _is_there(shared: str) -> bool:
    """Tell whether the shared tier can be read: asked each time, as it can come and go, or be made only later."""
    if levels.is_left_alone(shared, reading=True):
        return False
    if not os.access(os.path.join(shared, os.curdir), os.R_OK | os.X_OK, effective_ids=True):
        try:
            os.listdir(shared)  # raises the reason
        except FileNotFoundError:
            return False
        except OSError as error:
            fail_shared(shared, error, reading=True)
            return False
    directory_faults.check(shared)
    return True


def fail_shared(shared: str, error: OSError, *, reading: bool) -> None:
    """Report once that the shared tier has failed, and suspend it for 60 s. Strict mode raises CacheWriteError."""
    levels.leave_alone(shared, reading=reading)
    text, why = f"cannot {'read' if reading else 'write'} shared cache {shared}", error.strerror or f"{error}"
    remedy = f"Using the local tier. {_LATER}"
    events.report(Reason.UNUSABLE_DIRECTORY, text, why=why, cause=shared, remedy=remedy, error=error)
