"""Scenes about what torch does with launchers, and about autotuners that have some; see launcher_scenes.py."""

from __future__ import annotations

import contextlib
import io
import pickle
import threading
import types
from unittest import mock

from scenes import autotuners, model_scenes

BUNDLING = {"bundle_triton_into_fx_graph_cache": True}

# -- what torch does with launchers --


def run_autotuner(static, configs, fast=True, spills=False):
    """CachingAutotuner.run(), from the compile on, three times; what it leaves behind."""
    with autotuners.driver() as driver:
        tuner = autotuners.autotuner(
            static=static, configs=autotuners.CONFIGS[:configs], use_fast_triton_launcher=fast, spill_threshold=16
        )
        if spills:
            tuner._precompile_worker()
            tuner.launchers = [result.make_launcher() for result in tuner.compile_results]
            tuner.launchers[0].n_spills = 100
        first = list(tuner.launchers)
        for _ in range(3):
            tuner.run("in", "out", 1000, stream=5)
        (launcher,) = tuner.launchers
        cached = getattr(tuner, "_cached_launcher", None)
        reasons = getattr(tuner, "benchmark_failure_reasons", {})
        return {
            "launched": driver.launched,
            "unloaded": len(driver.unloaded),
            "results": len(tuner.compile_results),
            "best": launcher.config.kwargs["XBLOCK"],
            "launcher": type(launcher).__name__,
            "cached": cached and [type(cached) is types.FunctionType, cached is getattr(launcher, "func", launcher)],
            "reasons": [[first.index(o), reason.name] for o, reason in reasons.items()],
        }


def close_launchers():
    """Close a launcher as torch does after a benchmark, loaded or not, and all but one; what was unloaded."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    with autotuners.driver() as driver:
        tuner = autotuners.compiled()
        first, second = tuner.launchers
        revived = pickle.loads(pickle.dumps(first))
        CachingAutotuner._close_static_launcher(revived)
        told = {"unloaded by one that was not loaded": len(driver.unloaded)}
        autotuners.launch(revived)
        CachingAutotuner._close_static_launcher(revived)
        told["unloaded by one that was loaded"] = len(driver.unloaded)
        tuner._release_static_launchers_except(second)
        told["unloaded in all"] = len(driver.unloaded)
        autotuners.launch(second)
        autotuners.launch(pickle.loads(pickle.dumps(first)))
        told["launched"] = [made[0] for made in driver.launched]
        return told


def release_artifacts():
    """What an autotuner still holds after release_benchmark_artifacts, and what that unloaded."""
    with autotuners.driver() as driver:
        tuner = autotuners.compiled()
        tuner.benchmark_failure_reasons = dict.fromkeys(tuner.launchers, "failed")
        tuner._cached_launcher = tuner.launchers[0]
        tuner.release_benchmark_artifacts()
        left = [tuner.launchers, tuner.compile_results, len(tuner.benchmark_failure_reasons), tuner._cached_launcher]
        return {"left": left, "unloaded": len(driver.unloaded)}


def check_arguments():
    """What _check_launcher_call_args says about too many arguments: of a launcher, of its copy, of that when loaded."""
    with autotuners.driver():
        tuner = autotuners.compiled()
        live = tuner.launchers[0]
        revived, loaded = (pickle.loads(pickle.dumps(live)) for _ in range(2))
        autotuners.launch(loaded)
        said = []
        for launcher in (live, revived, loaded):
            tuner._check_launcher_call_args(launcher, ("in", "out", 1000))
            try:
                tuner._check_launcher_call_args(launcher, ("in", "out", 1000, 128, 5))
            except TypeError as error:
                said.append(str(error))
        return said


def launchers_as_keys():
    """Timings and failure reasons: whether each launcher, loaded meanwhile, is still found, and its equals are not."""
    with autotuners.driver():
        live = autotuners.compiled().launchers
        launchers = [*live, *pickle.loads(pickle.dumps(live)), *pickle.loads(pickle.dumps(live))]
        timings = {launcher: float(number) for number, launcher in enumerate(launchers)}
        for launcher in launchers:
            autotuners.launch(launcher)
        return {"found": [timings[launcher] for launcher in launchers], "best": timings[min(timings, key=timings.get)]}


def build_fast_launcher(static, fast):
    """What _build_fast_launcher makes of a launcher, live and unpickled, and whether that is saved and works."""
    from safecache import launchers

    with autotuners.driver() as driver:
        tuner = autotuners.compiled(static=static, use_fast_triton_launcher=fast)
        live = tuner.launchers[0]
        revived = pickle.loads(pickle.dumps(live))
        autotuners.launch(revived)
        told = []
        for launcher in (live, revived):
            built = tuner._build_fast_launcher(launcher)
            copy = pickle.loads(launchers.dumps([built]))[0]
            del driver.launched[:]
            autotuners.launch(built)
            autotuners.launch(copy)
            told.append(
                {
                    "function": type(built) is types.FunctionType,
                    "own": built is launcher.func,
                    "same": built.config is launcher.config and built.cache_hash == launcher.cache_hash,
                    "qualname": copy.__qualname__ == launcher.__qualname__,
                    "launched": [made[:7] for made in driver.launched],
                }
            )
        return told


# -- autotuners --


def _in_state(state, static=True):
    """An autotuner with launchers, and what torch's own runs leave on it."""
    tuner = autotuners.compiled(static=static)
    first = tuner.launchers[0]
    if state == "cached":
        tuner._cached_launcher = getattr(first, "func", first)
    elif state == "fast":
        tuner._cached_launcher = tuner._build_fast_launcher(first)
    elif state == "reasons":
        tuner.benchmark_failure_reasons = {first: "failed"}
    elif state == "run":
        tuner.run("in", "out", 1000, stream=5)
    elif state == "triton":
        # As after launches by Triton itself: its caches hold kernels that are loaded, and functions made with exec.
        tuner.fn.device_caches[0] = ({"kernel": threading.Lock()}, lambda: None)
    elif state == "reloaded":
        lock = threading.Lock()
        tuner._reload_kernel = lambda: lock
    return tuner


def _identities(tuner):
    """Everything on an autotuner, its function, its results and their kernels, each by its identity."""
    objects = [tuner, tuner.fn, *tuner.compile_results, *(result.kernel for result in tuner.compile_results)]
    lists = [tuner.launchers, tuner.compile_results]
    reasons = list(getattr(tuner, "benchmark_failure_reasons", {}).items())
    # Triton binds fn.repr, a method, anew.
    return [{name: id(value) for name, value in vars(o).items() if name != "repr"} for o in objects], [
        *([id(item) for item in each] for each in lists),
        [(id(launcher), id(reason)) for launcher, reason in reasons],
    ]


class ServingPickler(pickle.Pickler):
    """As those of vLLM and SGLang."""

    def reducer_override(self, obj):
        from torch._inductor.runtime.triton_heuristics import CachingAutotuner

        if isinstance(obj, CachingAutotuner):
            obj.prepare_for_pickle()
            return pickle.loads, (pickle.dumps(obj),)
        return NotImplemented


def _serving_dumps(obj):
    buffer = io.BytesIO()
    ServingPickler(buffer).dump(obj)
    return buffer.getvalue()


def dump_autotuner(path, state, static=True, serving=False):
    """Pickle an autotuner; whether it is as it was, and still runs."""
    with autotuners.driver() as driver:
        tuner = _in_state(state, static)
        before = _identities(tuner)
        content = (_serving_dumps if serving else pickle.dumps)({"autotuner": tuner})
        untouched = before == _identities(tuner)
        with open(path, "wb") as file:
            file.write(content)
        del driver.launched[:]
        launchers = list(tuner.launchers)
        for launcher in launchers:
            autotuners.launch(launcher)
        return {
            "untouched": untouched,
            "launched": len(driver.launched),
            "again": not serving and bool(pickle.dumps(tuner)),
            "lock": _has_lock(tuner),
            "results": len(tuner.compile_results),
        }


def _has_lock(tuner):
    return hasattr(getattr(tuner.fn, "_hash_lock", None), "acquire")


def load_autotuner(path):
    """Make and launch the launchers of a pickled autotuner; run it, too."""
    with open(path, "rb") as file:
        content = file.read()
    with autotuners.driver() as driver:
        loaded = pickle.loads(content)
        tuners = [loaded["autotuner"]] if isinstance(loaded, dict) else [saved.kernel for saved in loaded]
        told = []
        for tuner in tuners:
            del driver.launched[:]
            before = len(driver.loaded)
            state = [tuner.launchers, getattr(tuner, "_cached_launcher", None)]
            for result in tuner.compile_results:
                autotuners.launch(result.make_launcher())
            launched = [made[:7] for made in driver.launched]
            tuner.run("in", "out", 1000, stream=5)
            told.append({"launched": launched, "loaded": len(driver.loaded) - before, "state": state})
            told[-1]["reasons"] = _reasons_work(getattr(tuner, "benchmark_failure_reasons", {}), driver)
            told[-1]["ran"] = driver.launched[-1][:7]
        return told


def _reasons_work(reasons, driver):
    for launcher in reasons:
        autotuners.launch(launcher)
    return list(reasons.values())


@contextlib.contextmanager
def release_candidate():
    """prepare_for_pickle as in the release candidate of torch 2.12: it knows nothing of failure reasons."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    prepare = CachingAutotuner.prepare_for_pickle

    def prepare_for_pickle(self):
        reasons = getattr(self, "benchmark_failure_reasons", {})
        old = prepare(self)
        self.benchmark_failure_reasons = reasons
        return old

    with mock.patch.object(CachingAutotuner, "prepare_for_pickle", prepare_for_pickle):
        yield


def bundle_autotuner(path):
    """Put aside what the release candidate did, and pickle that."""
    from torch._inductor import config
    from torch._inductor.triton_bundler import TritonBundler

    with autotuners.driver() as driver, config.patch(BUNDLING), release_candidate():
        TritonBundler.begin_compile()
        tuner = _in_state("reasons")
        before = _identities(tuner)
        TritonBundler.put_static_autotuner("key", tuner)
        collected, names = TritonBundler.collect_static_autotuners()
        with open(path, "wb") as file:
            pickle.dump(collected, file)
        del driver.launched[:]
        for launcher in tuner.launchers:
            autotuners.launch(launcher)
        return {"restored": before == _identities(tuner), "names": names, "launched": len(driver.launched)}


class Obstacle:
    """Stands on an autotuner, and stops its copying."""

    def __init__(self, what):
        self.what = what
        if what == "lock":
            self.lock = threading.Lock()

    def __deepcopy__(self, memo):
        if self.what == "interrupt":
            raise model_scenes.PrivateInterrupt
        raise TypeError("cannot pickle '_thread.lock' object")


def put_aside_uncopyable(what, goes_on=True):
    """Put an autotuner aside that cannot be copied, while the rest of a compile goes on."""
    from torch._inductor import config
    from torch._inductor.triton_bundler import TritonBundler

    with autotuners.driver() as driver, config.patch(BUNDLING):
        TritonBundler.begin_compile()
        tuner = _in_state("reasons")
        tuner.obstacle = Obstacle(what)
        before, raised = _identities(tuner), None
        try:
            TritonBundler.put_static_autotuner("key", tuner)
        except BaseException as error:
            raised = error
        del driver.launched[:]
        for launcher in tuner.launchers:
            autotuners.launch(launcher)
        restored = before == _identities(tuner)
        if goes_on:
            TritonBundler.put_static_autotuner("other key", autotuners.compiled())
        return {
            "raised": raised and [type(raised).__name__, str(raised)],
            "restored": restored,
            "lock": _has_lock(tuner),
            "launched": len(driver.launched),
            "collected": [saved.cache_key for saved in TritonBundler.collect_static_autotuners()[0]],
        }
