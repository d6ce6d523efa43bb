"""Scenes about launchers of Triton kernels; see model_scenes.py, and autotuners.py for what stands in for the GPU."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import glob
import inspect
import os
import pickle
import signal
import threading
from unittest import mock

from scenes import autotuners

ATTRIBUTES = ("config", "n_regs", "n_spills", "shared", "cache_hash", "store_cubin", "_expected_positional_count")


def kind(name):
    """Options of autotuners.compiled()."""
    from scenes import triton_kernels

    if name == "user":
        config = {"FUNCTION": triton_kernels.double, "XBLOCK": 128}
        return {"function": triton_kernels.user_kernel, "configs": [config]}
    return {"static": name == "static", **({"store_cubin": True} if name == "store_cubin" else {})}


def launcher_of(name):
    return autotuners.compiled(**kind(name)).launchers[0]


def dump_launcher(path, static=True):
    """Make a launcher and pickle it, plainly, to a file."""
    with autotuners.driver():
        launcher = launcher_of("static" if static else "ordinary")
        with open(path, "wb") as file:
            pickle.dump(launcher, file)
    return {"module": launcher.__module__, "qualname": launcher.__qualname__}


def dump_launcher_of_a_worker(path):
    """As dump_launcher, where the kernel was compiled in another process, and so came out of a pickle."""
    with autotuners.driver():
        tuner = autotuners.autotuner(static=False)
        tuner._precompile_worker()
        tuner.prepare_for_pickle()
        arrived = pickle.loads(pickle.dumps(tuner))
        arrived.restore_after_unpickle(None)
        with open(path, "wb") as file:
            pickle.dump(arrived.compile_results[0].make_launcher(), file)


def launch_pickled(path):
    """Unpickle a launcher from a file and launch it; what was loaded and launched before and after."""
    with autotuners.driver() as driver:
        with open(path, "rb") as file:
            launcher = pickle.load(file)
        before = list(driver.loaded)
        autotuners.launch(launcher)
        return {
            "loaded before": before,
            "loaded": driver.loaded,
            "launched": driver.launched,
            "qualname": launcher.__qualname__,
        }


def identities(name):
    """What each launcher of the kind calls itself, and what its copy from a pickle does where there is one."""
    with autotuners.driver():
        launchers = autotuners.compiled(**kind(name)).launchers
        with contextlib.suppress(pickle.PicklingError):
            launchers += pickle.loads(pickle.dumps(launchers))
        return [[o.__module__, o.__name__, o.__qualname__, o.cache_hash] for o in launchers]


# -- in containers --


@dataclasses.dataclass
class Holder:
    launcher: object


class Plugged:
    """As an autotuner with a plugin that took notes."""

    def __init__(self, launcher):
        self._plugins = [Holder(launcher)]


CONTAINERS = {
    "itself": (lambda launcher: launcher, lambda held: held),
    "key": (lambda launcher: {launcher: "reason"}, lambda held: next(iter(held))),
    "partial": (lambda launcher: functools.partial(launcher, "in"), lambda held: held.func),
    "argument": (lambda launcher: functools.partial(autotuners.launch, launcher), lambda held: held.args[0]),
    "dataclass": (Holder, lambda held: held.launcher),
    "plugin": (Plugged, lambda held: held._plugins[0].launcher),
    "unpickled": (lambda launcher: pickle.loads(pickle.dumps(launcher)), lambda held: held),
    "unpickled and loaded": (lambda launcher: _launched(pickle.loads(pickle.dumps(launcher))), lambda held: held),
}


def _launched(launcher):
    autotuners.launch(launcher)
    return launcher


def dump_containers(path, name, containers=tuple(CONTAINERS), pickler="pickle"):
    """Pickle a launcher in each container, with every protocol, twice each."""
    with autotuners.driver():
        launcher = launcher_of(name)
        dumps = __import__(pickler).dumps
        held = {container: [CONTAINERS[container][0](launcher)] * 2 for container in containers}
        protocols = range(2, pickle.HIGHEST_PROTOCOL + 1)
        content = {c: [dumps([*two, launcher], protocol) for protocol in protocols] for c, two in held.items()}
        with open(path, "wb") as file:
            pickle.dump(content, file)
        return launcher.__qualname__


def launch_contained(path):
    """Launch what dump_containers pickled; by container, what is told of each pickle."""
    with open(path, "rb") as file:
        content = pickle.load(file)
    return {
        container: [_launch_contained(container, each) for each in pickles] for container, pickles in content.items()
    }


def _launch_contained(container, pickled):
    with autotuners.driver() as driver:
        first, second, launcher = pickle.loads(pickled)
        _, get = CONTAINERS[container]
        before = len(driver.loaded)
        autotuners.launch(get(first))
        return {
            "name": get(first).__qualname__,
            "loaded": [before, len(driver.loaded)],
            "launched": driver.launched,
            "one": get(first) is get(second) and (get(first) is launcher or "unpickled" in container),
        }


def copy_launcher(name):
    """Whether copy and deepcopy, of the launcher and of a list with it, give the same object; live, and unpickled."""
    with autotuners.driver():
        launcher = launcher_of(name)
        same = []
        for o in (launcher, pickle.loads(pickle.dumps(launcher)), _launched(pickle.loads(pickle.dumps(launcher)))):
            same += [copy.copy(o) is o, copy.deepcopy(o) is o, copy.deepcopy([o])[0] is o]
        return same


# -- the first call --


def attributes_in_pickle(name):
    """What differs between a launcher and its copy that is not loaded; whether reading that loaded anything."""
    with autotuners.driver() as driver:
        launcher = launcher_of(name)
        revived = pickle.loads(pickle.dumps(launcher))
        before = len(driver.loaded)
        names = [name for name in (*ATTRIBUTES, "_is_static") if hasattr(launcher, name)]
        different = [name for name in names if _plain(getattr(launcher, name)) != _plain(getattr(revived, name, None))]
        return {"names": names, "different": different, "loaded": len(driver.loaded) - before, "hash": hash(revived)}


def _plain(value):
    return value.all_kwargs() if hasattr(value, "all_kwargs") else value


def first_calls(name, threads):
    """Call a launcher that was unpickled, from many threads at once; then once more."""
    with autotuners.driver() as driver:
        launcher = pickle.loads(pickle.dumps(launcher_of(name)))
        launcher.note = ["kept"]
        del driver.loaded[:]
        start, load = threading.Barrier(threads), driver._load
        driver._load = lambda content: (threading.Event().wait(0.05), load(content))

        def call(number):
            start.wait()
            launcher(f"in{number}", "out", number, stream=5 + number)

        workers = [threading.Thread(target=call, args=(number,)) for number in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        launched = [list(made) for made in driver.launched]
        launcher("in", "out", 1000, stream=5)
        launcher(in_ptr0="in", out_ptr0="out", xnumel=1000, stream=5)
        return {
            "loaded": len(driver.loaded),
            "launched": sorted(launched),
            "later": driver.launched[threads:],
            "note": launcher.note,
            "parameters": list(inspect.signature(launcher).parameters),
            "noted": vars(launcher.func).get("note"),
        }


def fork_while_loading():
    """A child that is forked while another thread loads; how it ends."""
    with autotuners.driver() as driver:
        first, second = (pickle.loads(pickle.dumps(launcher)) for launcher in autotuners.compiled().launchers)
        loading, load, done = threading.Event(), driver._load, threading.Event()
        driver._load = lambda content: (loading.set(), done.wait(60), load(content))
        thread = threading.Thread(target=autotuners.launch, args=(first,))
        thread.start()
        assert loading.wait(60)
        pid = os.fork()
        if pid == 0:
            driver._load = load
            signal.alarm(20)
            autotuners.launch(second)
            os._exit(0)
        _, state = os.waitpid(pid, 0)
        done.set()
        thread.join()
        return os.waitstatus_to_exitcode(state)


def kept_binary():
    """What of a launcher with store_cubin, which keeps its binary, differs in its copy; when that was loaded."""
    with autotuners.driver() as driver:
        launcher = launcher_of("store_cubin")
        revived = pickle.loads(pickle.dumps(launcher))
        before = len(driver.loaded)
        named = {name: getattr(launcher, name) == getattr(revived, name) for name in ("def_args", "call_args")}
        untouched = len(driver.loaded) - before
        asm = {stage: code == revived.bin.asm[stage] for stage, code in launcher.bin.asm.items()}
        return {
            "arguments": named,
            "loaded by arguments": untouched,
            "asm": asm,
            "hash": launcher.bin.hash == revived.bin.hash,
            "function": [launcher.fn.__name__, revived.fn.__name__],
            "loaded": len(driver.loaded) - before,
            "again": pickle.loads(pickle.dumps(revived)).bin.asm.keys() == launcher.bin.asm.keys(),
        }


# -- failures of the first call --


def _cubin():
    """The file from which torch loads the kernel, of which there is one."""
    (path,) = glob.glob(os.path.join(os.environ["TRITON_CACHE_DIR"], "**", "triton_poi_scale.cubin"), recursive=True)
    return path


def _damage(path, how):
    if how == "deleted":
        os.remove(path)
    else:
        with open(path, "r+b") as file:
            file.seek(1000)
            (byte,) = file.read(1)
            file.seek(1000)
            file.write(bytes([byte ^ 1]))


def _attempt(launcher):
    try:
        autotuners.launch(launcher)
    except Exception as error:
        return {
            "type": type(error).__name__,
            "runtime": isinstance(error, RuntimeError),
            "text": str(error),
            "cause": type(error.__cause__).__name__,
            "error": error,
        }
    return None


def load_with_cubin(how, when):
    """Launch a launcher whose cubin is damaged before or after it was pickled, or while that is loaded."""
    from torch._inductor.runtime.triton_heuristics import StaticTritonCompileResult

    with autotuners.driver() as driver:
        launcher = autotuners.compiled(configs=autotuners.CONFIGS[:1]).launchers[0]
        if when == "before":
            _damage(_cubin(), how)
        revived = pickle.loads(pickle.dumps(launcher))
        if when == "after":
            _damage(_cubin(), how)
        original, make = driver.loaded[:], StaticTritonCompileResult.make_launcher
        del driver.loaded[:]
        descriptors = os.listdir("/proc/self/fd")

        def damage_first(result):
            if when == "meanwhile":
                _damage(_cubin(), how)
            return make(result)

        with mock.patch.object(StaticTritonCompileResult, "make_launcher", damage_first):
            failure = _attempt(revived)
        return {
            "failure": failure,
            "loaded": driver.loaded[:],
            "original": original,
            "again": _attempt(pickle.loads(pickle.dumps(revived))),
            "descriptors": len(os.listdir("/proc/self/fd")) - len(descriptors),
        }


def _target(descriptor):
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return ""


def load_elsewhere(name, **provenance):
    """Launch where the driver fails, in a process that is described otherwise than this one; and where it does not."""
    from safecache.signing import provenance as module

    with autotuners.driver() as driver:
        revived = pickle.loads(pickle.dumps(launcher_of(name)))
        here = {**module.describe(), **provenance}
        driver.failure = MemoryError("no kernel image") if provenance.get("memory") else ValueError("no kernel image")
        with mock.patch.object(module, "describe", lambda: here):
            failure = _attempt(revived)
        error = failure.pop("error")
        same = driver.failure in (error, error.__cause__)
        as_it_was = error is driver.failure and error.__cause__ is None and error.__context__ is None
        driver.failure = None
        repaired = _attempt(revived)
        descriptors = [name for name in os.listdir("/proc/self/fd") if "memfd:" in _target(name)]
        return {**failure, "same": same, "as it was": as_it_was, "repaired": repaired, "descriptors": descriptors}


def load_unreadable(**versions):
    """Launch by a recipe that cannot be read, made by ``versions`` or by these."""
    with autotuners.driver() as driver:
        revive, (recipe, attributes) = launcher_of("static").__reduce__()
        del driver.loaded[:]
        launcher = revive(recipe._replace(content=b"cno_such_module\nThing\n.", **versions), attributes)
        launcher = pickle.loads(pickle.dumps(launcher))
        return {**_attempt(launcher), "loaded": driver.loaded, "hash": launcher.cache_hash == attributes["cache_hash"]}


# -- deactivation --


def deactivate():
    """What a launcher that is made later is; whether one that was pickled before, or made before, still works."""
    import types

    import safecache

    with autotuners.driver() as driver:
        live = launcher_of("static")
        pickled = pickle.loads(pickle.dumps(live))
        safecache.deactivate()
        plain = launcher_of("ordinary"), launcher_of("static")
        told = {
            "plain": [type(o) is types.FunctionType for o in plain],
            "names": [o.__qualname__ for o in plain],
            "attributes": sorted(set(vars(plain[1])) - {*ATTRIBUTES, "_is_static"}),
        }
        later = pickle.loads(pickle.dumps(live))
        del driver.launched[:]
        told["failures"] = [_attempt(o) for o in (live, pickled, later)]
        return {**told, "launched": len(driver.launched)}
