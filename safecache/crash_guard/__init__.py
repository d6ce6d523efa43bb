"""Guarded first runs: quarantine a cached graph that crashed the process that first ran it.

A feature: it may import the core, and no other feature. A trial is the load and the first run of one graph. It is armed
in the marker of its process while it goes on. From the second run on nothing of it is left.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import wrapt

from safecache import compiles
from safecache.crash_guard import markers, strikes
from safecache.crash_guard.markers import Blame, Marker
from safecache.crash_guard.strikes import BARRED
from safecache.errors import SafecacheError
from safecache.patching.hook import hook
from safecache.places.refs import ARTIFACT, Ref
from safecache.ports import Admitted, Use
from safecache.reporting import events, report
from safecache.reporting.kinds import Kind, Reason
from safecache.reporting.report import Refusal
from safecache.session import Part, inherit
from safecache.settings import config, units
from safecache.tiers import fallback

__all__ = [
    "CAUSE",
    "Trial",
    "add_file",
    "announce",
    "find_refusal",
    "is_unrelated",
    "load",
    "open_cache",
    "watch_graph",
    "watch_kernel",
]


# All that is said of this is said once.
CAUSE = "trials"
_BARRED = (
    "crashed again after a recompile; this key is compiled at every start for 30 days (after fixing the cause: "
    "safecache forget --all)"
)
_FEATURE, _EFFECT = "the look at what processes have died of", "Entries are loaded as if none had died."
_WATCH, _UNWATCHED = "the watch over a first run", "A crash of it may pass unnoticed."


class _Cache:
    """State of one cache in this process: where its markers are stored, and the strikes against its entries."""

    def __init__(self, root: str) -> None:
        self.root = fallback.find_original(root) or root
        self.place = markers.find_home(self.root)
        self.strikes = strikes.NONE
        self.began = time.time()


class _State:
    def __init__(self) -> None:
        self.caches: dict[str, _Cache] = {}
        # The graphs that were loaded and have not got their callable yet.
        self.loaded: dict[int, tuple[weakref.ref[Any], Trial]] = {}


_state: Part[_State] = Part(_State, inherit)


class Trial:
    """Guarded first run of files in the cache ``root``, by ``names``. ``forgives``: an exception is no strike."""

    def __init__(self, root: str, names: list[str], *, forgives: bool = False) -> None:
        self.cache = open_cache(root)
        self.names = names
        self.forgives = forgives
        self.is_over = False
        self._armed: tuple[Marker, int] | None = None

    @contextmanager
    def guard_block(self) -> Iterator[None]:
        """Guard this block, as part of the first run, in this thread. An exception that leaves it is a strike."""
        try:
            with compiles.override_scope(trial=self):
                self._arm()
                try:
                    yield
                finally:
                    self._disarm()
        except Exception as error:
            self._fail(error)
            raise

    @report.contain_errors(_WATCH, _UNWATCHED)
    def _arm(self) -> None:
        marker = markers.get_own_marker(self.cache.place, self.cache.began)
        slot = None if marker is None else marker.arm(self.names)
        if marker is not None and slot is not None:
            self._armed = marker, slot
            markers.begin(marker.descriptor)

    @report.contain_errors(_WATCH, _UNWATCHED)
    def _disarm(self) -> None:
        if self._armed is not None:
            (marker, slot), self._armed = self._armed, None
            markers.end()
            marker.disarm(slot)

    @report.contain_errors(_WATCH, _UNWATCHED)
    def guard_file(self, path: str) -> None:
        """Add ``path`` to the files under guard, because the first run loads it, if it is in the same cache."""
        prefix = os.path.join(self.cache.root, "")
        name = path[len(prefix) :]
        if path.startswith(prefix) and name not in self.names:
            self.names.append(name)
            if self._armed is not None:
                marker, slot = self._armed
                marker.rearm(slot, self.names)

    @report.contain_errors(_WATCH, _UNWATCHED)
    def mark_passed(self) -> None:
        """Mark the first run as successful, and clear earlier strikes against its keys."""
        self.is_over = True
        if self.cache.strikes.keys:
            strikes.clear(self.cache.root, self.names)

    @report.contain_errors(_WATCH, _UNWATCHED)
    def _fail(self, error: Exception) -> None:
        self.is_over = True
        if self.forgives or is_unrelated(error, self.cache.root):
            return
        blame = markers.judge_exception(error, self.cache.root)
        text = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
        _add_strikes(self.cache, self.names, blame, Reason.FAILED_RUN, self.cache.began, f"it failed: {text}")


def is_unrelated(error: Exception, root: str) -> bool:
    """Tell whether an exception from a load or a first run is plainly no fault of files in the cache ``root``."""
    if isinstance(error, SafecacheError) or not config.current().trials:
        return True
    return markers.judge_exception(error, root) is Blame.NONE


def open_cache(root: str) -> _Cache:
    """Look, once, at what other processes have died of in the cache ``root``, before anything is loaded from it."""
    caches = _state.now.caches
    cache = caches.get(root)
    if cache is not None:
        return cache
    with _state.lock:
        if root not in caches:
            caches[root] = cache = _Cache(root)
            if config.current().trials:
                _judge_deaths(cache)
    return caches[root]


def _judge_deaths(cache: _Cache) -> None:
    """Judge the processes that died in the cache, and read its strikes. Strict mode raises an error for a crash."""
    try:
        # No such directory, or none that can be read: nothing is known.
        with report.contain_errors(_FEATURE, _EFFECT), suppress(OSError):
            for death in markers.take_deaths(cache.place):
                blame = markers.judge_death(death.said, death.around)
                if blame is Blame.SURE and len(death.running) > 1:
                    blame = Blame.UNSURE  # which of them it was
                if blame is not Blame.NONE:
                    how = markers.find_signal(death.said) or "nothing tells of what"
                    what = f"process {death.pid} died in it: {how}"
                    for names in death.running:
                        _add_strikes(cache, names, blame, Reason.CRASHED_RUN, death.began, what)
    finally:
        with report.contain_errors(_FEATURE, _EFFECT), suppress(OSError):
            cache.began = time.time()  # later strikes are unknown to this process
            cache.strikes = strikes.read(cache.root)


def _add_strikes(cache: _Cache, names: list[str], blame: Blame, reason: Reason, began: float, what: str) -> None:
    """Add strikes, and report it if anything is quarantined for them."""
    # Where none can be written, neither can a marker.
    with suppress(OSError):
        moved = strikes.add(cache.root, names, blame, reason, began)
        if moved is not None:
            rest = f" and {units.write_count(len(names) - 1, 'file')} it loaded" if len(names) > 1 else ""
            where = f" in {os.path.dirname(moved[0])}" if moved else " where possible; what stays is not used"
            graph = f"cached graph {os.path.join(cache.root, names[0])}"
            remedy = f"Quarantined it{rest}{where}. Recompiling. Help: safecache ls --crashed"
            if ARTIFACT.fullmatch(names[0]):
                graph = "a graph compiled ahead of time"
                remedy = "It is refused until it is compiled again. Help: safecache ls --crashed"
            events.report(reason, f"{graph} did not survive its first run", why=what, cause=CAUSE, remedy=remedy)


def find_refusal(ref: Ref, name: str, *, is_lower: bool = False) -> Refusal | None:
    """Return why crashes forbid to load a file, or anything of its key; None if they do not.

    See LoadGuard.refusal(). Against a file in a tier below the cache only crashes of that file count.
    """
    if ARTIFACT.fullmatch(name):
        [(kind, key, name)] = strikes.find_keys([name])
        ref = Ref(kind, key, ref.root)
    elif ref.kind is Kind.KERNEL:
        ref = ref._replace(kind=Kind.NATIVE_CODE)  # as strikes.keys_of() has it
    found = open_cache(ref.root).strikes
    if found.count_strikes(ref) >= BARRED and not is_lower:
        return Refusal(Reason.CRASHED_RUN, _BARRED, cause=CAUSE)
    if name and found.has_file(ref, name):
        return Refusal(Reason.CRASHED_RUN, "a process has died when it first ran it", cause=CAUSE)
    return None


def load(use: Use, work: Callable[[], Any]) -> Any:
    """Return what ``work`` returns, which loads ``use``, and guard the load: see LoadGuard.load().

    A library has passed once it is loaded. A graph, a model and a kernel are guarded until their first run ends. Inside
    another guarded run of this thread anything but a graph counts as a file of that run.
    """
    if use.kind is Kind.KERNEL:
        _, announced = _state.now.loaded.pop(id(use.loaded), (None, None))
        return work() if announced is None else _load_kernel(announced, work)
    is_graph = use.kind is Kind.FX_ENTRY
    if not config.current().trials or not use.names or (compiles.current.trial is not None and not is_graph):
        return work()
    trial = Trial(use.root, use.names, forgives=use.forgives)
    with trial.guard_block():
        loaded = work()
    if is_graph:
        _keep_trial(use.loaded, trial)
    elif use.kind is Kind.NATIVE_CODE:
        trial.mark_passed()
    else:
        loaded.loader = _Loader(loaded.loader, loaded, trial)
    return loaded


def _keep_trial(loaded: Any, trial: Trial) -> None:
    number = id(loaded)
    pending = _state.now.loaded
    pending[number] = weakref.ref(loaded, lambda _: pending.pop(number, None)), trial


class _Loader(wrapt.ObjectProxy[Any]):
    """Proxy of a model's loader, which guards its first run, and then puts the loader back."""

    def __init__(self, loader: Any, model: Any, trial: Trial) -> None:
        super().__init__(loader)
        self._self_model, self._self_trial = weakref.ref(model), trial

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model, the first time under guard."""
        return self._self_run_first(self.__wrapped__.run, args, kwargs)

    def boxed_run(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model, the first time under guard."""
        return self._self_run_first(self.__wrapped__.boxed_run, args, kwargs)

    def _self_run_first(self, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        model = self._self_model()
        if model is not None and model.loader is self:
            model.loader = self.__wrapped__
        return _run_first(self._self_trial, call, *args, **kwargs)


def _run_first(trial: Trial, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if trial.is_over:
        return call(*args, **kwargs)
    trial.is_over = True
    with trial.guard_block():
        result = call(*args, **kwargs)
    trial.mark_passed()
    return result


def add_file(admitted: Admitted) -> None:
    """Observer: add the admitted file to this thread's guarded run."""
    if compiles.current.trial is not None:
        compiles.current.trial.guard_file(admitted.path)


@hook(
    "torch._inductor.output_code:CompiledFxGraph.post_compile(self, example_inputs, constants, graph_kwargs)",
    why="A cached graph that crashes its process is loaded and crashes again at every start until someone deletes "
    "the cache.",
    issue="https://github.com/vllm-project/vllm/issues/24915",
)
def watch_graph(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """CompiledFxGraph.post_compile, which wraps its callable last: the first run is on trial if loaded.

    After that its callable is what it was. What it has started on a GPU may still be running when its first run
    returns: that is not waited for.
    """
    wrapped(*args, **kwargs)
    graph = instance
    _, trial = _state.now.loaded.pop(id(graph), (None, None))
    if trial is not None and graph.current_callable is not None:
        _watch_attribute(graph, "current_callable", trial)


def _watch_attribute(holder: Any, attribute: str, trial: Trial) -> None:
    original, place = getattr(holder, attribute), weakref.ref(holder)

    def run(*args: Any, **kwargs: Any) -> Any:
        found = place()
        if found is not None and getattr(found, attribute) is run:
            setattr(found, attribute, original)
        return _run_first(trial, original, *args, **kwargs)

    setattr(holder, attribute, run)


def announce(use: Use) -> None:
    """Prepare to guard a kernel that is loaded later: see LoadGuard.announce()."""
    if config.current().trials:
        _keep_trial(use.loaded, Trial(use.root, use.names, forgives=use.forgives))


def _load_kernel(trial: Trial, work: Callable[[], Any]) -> Any:
    if compiles.current.trial is not None:
        compiles.current.trial.guard_file(os.path.join(trial.cache.root, trial.names[0]))
        return work()
    with trial.guard_block():
        return work()


@hook(
    "triton.runtime.jit:JITFunction._do_compile(self, key, signature, device, constexprs, options, attrs, warmup)",
    why="Triton keeps no record of a cached kernel that crashed at its first launch, so every start crashes again.",
    issue="https://github.com/triton-lang/triton/blob/v3.9.0/python/triton/runtime/jit.py#L887",
)
def watch_kernel(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:  # noqa: ARG001
    """JITFunction._do_compile: the load and first launch of a kernel that was found in a cache are on trial.

    After that nothing is left of it: Triton asks for the load at each launch. See watch_graph().
    """
    kernel = wrapped(*args, **kwargs)
    _, trial = _state.now.loaded.pop(id(kernel), (None, None))
    if trial is None:
        return kernel
    place = weakref.ref(kernel)

    def load() -> None:
        found: Any = place()
        vars(found).pop("_init_handles", None)
        _load_kernel(trial, found._init_handles)
        _watch_attribute(found, "_run", trial)

    kernel._init_handles = load
    return kernel
