"""What the tests' interpreters ask: imports neither torch nor safecache by itself."""

import importlib
import importlib.util
import inspect
import sys
import time

CODECACHE = "torch._inductor.codecache"
AUTOGRAD_CACHE = "torch._functorch._aot_autograd.autograd_cache"
MODULES = (
    CODECACHE,
    AUTOGRAD_CACHE,
    "torch._functorch.aot_autograd",
    "torch._inductor.compile_fx",
    "torch._dynamo.aot_compile",
    "torch._dynamo.aot_compile_types",
    "torch._dynamo.package",
    "torch._dynamo.pgo",
    "torch._inductor.runtime.autotune_cache",
    "torch._inductor.runtime.caching.implementations",
    "torch.compiler._cache",
    "torch.compiler",
    "torch._inductor.standalone_compile",
    "torch._inductor.compile_worker.subproc_pool",
    "torch._inductor.runtime.triton_heuristics",
    "torch._inductor.select_algorithm",
    "torch._inductor.triton_bundler",
    "triton.runtime.build",
    "triton.runtime.autotuner",
    "triton.runtime.cache",
    "triton.compiler.compiler",
    "triton.compiler",
    "triton",
    "torch.utils._filelock",
    "torch.utils._triton",
    "torch.utils.cpp_extension",
    "torch._inductor.cpp_builder",
    "torch._inductor.cpu_vec_isa",
    "torch._inductor.output_code",
    "torch._inductor.package",
    "torch._inductor.runtime.cache_dir_utils",
    "torch._export",
    "torch.export.pt2_archive._package",
)


def import_all():
    """Import every target module."""
    return [importlib.import_module(name) for name in MODULES]


def states():
    """The state of every hook that this torch has, by its name."""
    import safecache

    return {hook.name: hook.state for hook in safecache.status() if hook.state != "not for this torch"}


def reasons():
    """Why a hook stands down, by its name; only those that do."""
    import safecache

    return {hook.name: hook.reason for hook in safecache.status() if hook.reason}


def all_are(state):
    """Whether every hook is in this state."""
    return set(states().values()) == {state}


def await_all(state, seconds=5):
    """Wait until every hook is in this state: some are put on by a thread."""
    end = time.monotonic() + seconds
    while not all_are(state) and time.monotonic() < end:
        time.sleep(0.01)
    assert all_are(state), states()


def snapshot():
    """Every attribute of the target modules and of the classes in them, as it is stored."""
    found = {}
    for name in MODULES:
        module = sys.modules[name]
        for attribute, value in vars(module).items():
            found[name, attribute] = value
            if inspect.isclass(value) and value.__module__ == name:
                for member in vars(value):
                    found[name, attribute, member] = inspect.getattr_static(value, member)
    return found


def differences(before, after):
    """The attributes that are not the identical object in both, or are missing from one."""
    missing = object()
    return [key for key in {**before, **after} if before.get(key, missing) is not after.get(key, missing)]
