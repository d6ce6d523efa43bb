"""What a test's child process does: each scene is a function that returns something JSON can carry.

They run in a process that has torch and Inductor imported, but has compiled nothing under the settings of the test.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time


def inputs():
    import torch

    torch.manual_seed(0)
    return torch.randn(8, 16), torch.randn(16, 16, requires_grad=True)


def compile_model(**functorch):
    """Forward and backward of a freshly compiled model, checked against eager."""
    import torch
    from torch._dynamo.utils import counters
    from torch._functorch import config as functorch_config

    from scenes.models import model

    x, w = inputs()
    with functorch_config.patch(**functorch):
        y = torch.compile(model)(x, w)
        y.sum().backward()
    compiled = w.grad.clone()
    w.grad = None
    expected = model(x, w)
    expected.sum().backward()
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(compiled, w.grad)
    aot, inductor = counters["aot_autograd"], counters["inductor"]
    return {
        "aot": {name: aot[f"autograd_cache_{name}"] for name in ("hit", "miss", "bypass", "saved")},
        "fx": {name: inductor[f"fxgraph_cache_{name}"] for name in ("hit", "miss")},
    }


def compile_twice(**functorch):
    """compile_model, in two lives of dynamo: what warns once in a process must not warn in the second."""
    import torch
    from torch._dynamo.utils import counters

    compile_model(**functorch)
    torch._dynamo.reset()
    counters.clear()
    return compile_model(**functorch)


def compile_suppressing(**functorch):
    """compile_model where dynamo logs what a compile raises, and runs the function eagerly, as SGLang has it."""
    from torch._dynamo import config as dynamo_config

    with dynamo_config.patch(suppress_errors=True):
        return compile_model(**functorch)


def suppress_the_error_of_a_backend():
    """What a function gives whose backend fails by itself, where dynamo runs it eagerly for that."""
    import torch
    from torch._dynamo import config as dynamo_config

    def fail(graph, example_inputs):
        raise RuntimeError("not a cache's")

    with dynamo_config.patch(suppress_errors=True):
        return torch.compile(lambda x: x + 1, backend=fail)(torch.ones(2)).tolist()


def compile_with(injection, place, **functorch):
    """compile_model with an object that does not pickle in ``place``."""
    with injected(injection, place):
        return compile_twice(**functorch)


def compile_uncacheable(**functorch):
    """compile_model of an entry that torch itself declines to cache, at the moment of its save."""
    from unittest import mock

    from torch._functorch._aot_autograd import aot_autograd_result, autograd_cache

    def decline(self):
        raise autograd_cache.BypassAOTAutogradCache("declined")

    with mock.patch.object(aot_autograd_result.GenericAOTAutogradResult, "pre_save", decline):
        return compile_model(**functorch)


def standalone(injection=None, place="aot", save=None, fmt="binary", functorch=None, **options):
    """standalone_compile, with an object that does not pickle; the compiled result is called and may be saved."""
    import torch._inductor
    from torch._functorch import config as functorch_config

    from scenes.models import model

    graph, x = _standalone_graph()
    with injected(injection, place) if injection else contextlib.nullcontext(), functorch_config.patch(functorch or {}):
        artifact = torch._inductor.standalone_compile(graph, [x], dynamic_shapes="from_example_inputs", **options)
    torch.testing.assert_close(_first(artifact(x)), model(x, x.T @ x))
    if save is not None:
        artifact.save(path=save, format=fmt)
    return {"saveable": bool(artifact._artifacts and artifact._artifacts[1].aot_autograd_artifacts)}


def offering_aot_compile():
    """torch 2.11 offers aot_compile only behind a setting."""
    import torch

    settings = torch._dynamo.config
    return settings.patch({"enable_aot_compile": True} if hasattr(settings, "enable_aot_compile") else {})


def aot_compile(injection, place, save=None):
    """torch.compile(...).aot_compile, where torch itself turns its strict mode on, as vLLM uses it."""
    import torch

    from scenes.models import scale

    x = inputs()[0]
    with injected(injection, place), offering_aot_compile():
        compiled = torch.compile(scale, fullgraph=True).aot_compile(((x,), {}))
    torch.testing.assert_close(compiled(x), scale(x))
    if save is not None:
        compiled.save_compiled_function(save)


def save_without_artifacts_after_a_failure(path):
    """One graph does not pickle; the next is not cached at all, and saved."""
    import torch._inductor

    standalone("lambda")
    graph, x = _standalone_graph()
    with torch._functorch.config.patch(enable_autograd_cache=False):
        artifact = torch._inductor.standalone_compile(graph, [x], dynamic_shapes="from_example_inputs")
    artifact.save(path=path)


def load_standalone(path, fmt="binary"):
    import torch._inductor

    from scenes.models import model

    _, x = _standalone_graph()
    artifact = torch._inductor.CompiledArtifact.load(path=path, format=fmt)
    torch.testing.assert_close(_first(artifact(x)), model(x, x.T @ x))
    return True


def load_for_vllm(path, fmt="binary"):
    """Whether vLLM gets an artifact; if not, it compiles."""
    from safecache.integrations import vllm

    return vllm.load_artifact(lambda: load_standalone(path, fmt), None, (), {})


def load_for_vllm_without_memory(path):
    import torch

    from safecache.integrations import standalone_compile, vllm

    def fails(path):
        raise torch.OutOfMemoryError("no room")

    return vllm.load_artifact(lambda: standalone_compile.load(fails, None, (), {"path": path}), None, (), {})


def load_with_key(path, key):
    """Load a standalone artifact with nothing in it, and this for a key."""
    import torch
    from torch._inductor.codecache import torch_key
    from torch.utils._appending_byte_serializer import BytesWriter

    writer = BytesWriter()
    writer.write_bytes(b"CacheCompiledArtifact")
    writer.write_bytes(torch_key())
    writer.write_str(key)
    writer.write_bytes(b"")
    with open(path, "wb") as file:
        file.write(writer.to_bytes())
    torch._inductor.CompiledArtifact.load(path=path)


def _first(result):
    return result[0] if isinstance(result, (tuple, list)) else result


def _standalone_graph():
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    from scenes.models import model

    torch.manual_seed(0)
    x = torch.randn(16, 16)
    return make_fx(lambda x: (model(x, x.T @ x),))(x), x


def save_mega_cache(path):
    import torch

    compile_model()
    blob, info = torch.compiler.save_cache_artifacts()
    with open(path, "wb") as file:
        file.write(blob)
    return dict(info.artifacts)


def load_mega_cache(path):
    import torch

    with open(path, "rb") as file:
        info = torch.compiler.load_cache_artifacts(file.read())
    return {"loaded": dict(info.artifacts) if info else None, **compile_model()}


def load_planted_mega_cache(path, marker, key):
    """load_mega_cache, with every entry in the artifact replaced by a hostile pickle, or given another key."""
    import pickle

    from faults.damage import Marker
    from torch.compiler import _cache

    with open(path, "rb") as file:
        artifacts = _cache.CacheArtifactManager.deserialize(file.read())
    hostile = pickle.dumps(Marker(marker))
    planted = {
        name: [type(a)(key, a.content) if key else type(a)(a.key, hostile) for a in found]
        for name, found in artifacts.items()
        if name in ("inductor", "aot_autograd")
    }
    info = _cache.CacheArtifactManager.populate_caches(planted)
    return {"loaded": {name: keys for name, keys in info.artifacts.items() if keys}, **compile_model()}


class FakeRedis:
    """A remote cache that answers from, and keeps, a directory of JSON files."""

    def __init__(self, directory):
        self.directory = directory

    def get(self, key):
        import json

        try:
            with open(os.path.join(self.directory, key)) as file:
                return json.load(file)
        except FileNotFoundError:
            return None

    def put(self, key, value):
        import json

        with open(os.path.join(self.directory, key), "w") as file:
            json.dump(value, file)


class BrokenRemote:
    """A remote cache that raises whatever it is asked."""

    def get(self, key):
        raise ValueError("no reply")

    def put(self, key, value):
        raise ValueError("no reply")


def compile_with_remote(directory=None):
    """compile_model with a remote cache on, for both entry caches, and no local entries to find."""
    from unittest import mock

    from torch._functorch import config as functorch_config
    from torch._functorch._aot_autograd import autograd_cache
    from torch._inductor import codecache, compile_fx
    from torch._inductor import config as inductor_config

    remote = FakeRedis(directory) if directory else BrokenRemote()
    with (
        inductor_config.patch(fx_graph_remote_cache=True),
        functorch_config.patch(enable_remote_autograd_cache=True),
        mock.patch.object(codecache.FxGraphCache, "get_remote_cache", staticmethod(lambda: remote)),
        mock.patch.object(autograd_cache.AOTAutogradCache, "get_remote_cache", staticmethod(lambda: remote)),
    ):
        assert compile_fx.should_use_remote_fx_graph_cache()
        return compile_model()


def keys_computed():
    """The cache keys of the model, as the directories that a cold compile made show them."""
    compile_model()
    root = os.environ["TORCHINDUCTOR_CACHE_DIR"]
    found = sorted(os.listdir(os.path.join(root, "aotautograd")))
    for folder in os.listdir(os.path.join(root, "fxgraph")):
        found += sorted(os.listdir(os.path.join(root, "fxgraph", folder)))
    return sorted(found)


def build_keys():
    """The keys of torch and Triton, and which of the files that they are of were opened for them."""
    import hashlib
    import importlib.util
    import sys

    import torch._inductor.codecache as codecache

    opened, tops = [], ["torch", "triton"]
    tops = [os.path.dirname(spec.origin) for spec in map(importlib.util.find_spec, tops) if spec is not None]

    def note(event, arguments):
        if event == "open" and str(arguments[0]).startswith(tuple(tops)) and not str(arguments[0]).endswith(".pyc"):
            opened.append(str(arguments[0]))

    from safecache.built_code import build_keys as kept

    codecache.torch_key.clear()  # this process is a fork of one that has asked
    kept._keys.reset()
    kept._SETTLED = -1.0  # they may have been installed just now
    keys = [lambda: codecache.torch_key().hex()]
    if len(tops) == 2:
        from triton.runtime.cache import triton_key

        triton_key.cache_clear()
        keys.append(lambda: hashlib.sha256(triton_key().encode()).hexdigest())
    sys.addaudithook(note)
    return [key() for key in keys], opened


class RaisesOnPickle:
    def __getstate__(self):
        raise RuntimeError("this object does not want to be saved")


class PrivateInterrupt(BaseException):
    """Stands for vLLM's StopCompiling."""


class Interrupts:
    def __getstate__(self):
        raise PrivateInterrupt


def _exec_made_launcher():
    namespace = {}
    exec("def launcher(*args):\n    return args", namespace)
    return namespace["launcher"]


def _deep_list():
    nested = []
    for _ in range(100_000):
        nested = [nested]
    return nested


UNPICKLABLE = {
    "lambda": lambda: lambda: None,
    "launcher": _exec_made_launcher,
    "lock": threading.Lock,
    "getstate": RaisesOnPickle,
    "recursion": _deep_list,
}
CULPRITS = UNPICKLABLE | {"interrupt": Interrupts}
PLACES = ["aot", "fx"]


@contextlib.contextmanager
def injected(name, place):
    """Put the named object into every AOT entry, every FX graph, or make preparing the graph fail."""
    from unittest import mock

    from torch._functorch._aot_autograd import autograd_cache
    from torch._inductor import output_code

    culprit = CULPRITS[name]()
    if place == "aot":
        make_entry = autograd_cache.AOTAutogradCache.make_entry

        def make(*args, **kwargs):
            entry = make_entry(*args, **kwargs)
            entry.runtime_metadata.injected = [{"launcher": culprit}]
            return entry

        patch = mock.patch.object(autograd_cache.AOTAutogradCache, "make_entry", staticmethod(make))
    else:
        prepare = output_code.CompiledFxGraph.prepare_for_serialization

        def prepare_for_serialization(self):
            if place == "prepare":
                raise RuntimeError("cannot be prepared")
            prepare(self)
            self.injected = [{"launcher": culprit}]

        patch = mock.patch.object(output_code.CompiledFxGraph, "prepare_for_serialization", prepare_for_serialization)
    with patch:
        yield


def warm_up():
    """Fill the per-process caches (keys of torch and triton, ISA probe, headers) once, for all children.

    Without a backward pass: after one, autograd refuses to run in a fork.
    """
    import torch
    from torch._dynamo.utils import counters

    from scenes.models import model

    with torch.no_grad():
        torch.compile(model)(*inputs())
    torch._dynamo.reset()
    counters.clear()


def adopt_cache(directory):
    from safecache.upkeep import audit

    return audit.adopt(directory)._asdict()


def compile_model_and_say_where():
    """Compile the model, and say which files of code were opened for it by the loader and by Python."""
    import importlib.util
    from unittest import mock

    from torch._inductor import codecache

    files = []
    load, reload = importlib.util.spec_from_file_location, codecache._reload_python_module.__wrapped__.__globals__
    spec = mock.patch("importlib.util.spec_from_file_location", lambda n, p: files.append(str(p)) or load(n, p))
    source = mock.patch.dict(reload, open=lambda path, *rest: files.append(path) or open(path, *rest))  # noqa: SIM115
    with spec, source:
        return compile_model() | {"files": files}


def compile_and_end():
    """compile_model, in a fork that ends as those of multiprocessing do."""
    import multiprocessing.util

    result = compile_model()
    multiprocessing.util._exit_function()
    return result


def compile_and_count_builds():
    """compile_model; and how often a compiler was run for it."""
    from unittest import mock

    from torch._inductor import cpp_builder

    with mock.patch.object(cpp_builder, "run_compile_cmd", wraps=cpp_builder.run_compile_cmd) as run:
        return compile_model() | {"builds": run.call_count}


def made(event, arguments):
    """The path that this audit event makes; None if it makes none, or does not say in which directory."""
    if event == "open":
        return arguments[0] if (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR) and "/" in str(arguments[0]) else None
    if event not in ("os.mkdir", "os.rename", "os.link"):
        return None
    name, directory = arguments[0 if event == "os.mkdir" else 1], arguments[-1]
    return os.path.join(os.readlink(f"/proc/self/fd/{directory}") if directory >= 0 else "", name)


def refuse_writes(root, error):
    """Nothing new can be made below ``root`` from now on: the attempts, each of which raises this errno."""
    import sys

    refused = []

    def refuse(event, arguments):
        path = made(event, arguments)
        if path is not None and str(path).startswith(root):
            refused.append(event)
            raise OSError(error, os.strerror(error), str(path))

    sys.addaudithook(refuse)
    return refused


def compile_where_writes_fail(error):
    """compile_model, while nothing new can be written below the cache directory: each attempt raises this errno."""
    refused = refuse_writes(os.environ["TORCHINDUCTOR_CACHE_DIR"], error)
    return compile_model() | {"refused": len(refused)}


def compile_with_few_descriptors(spare):
    """compile_model, where so many more files can be opened."""
    import resource

    taken = [os.open(os.devnull, os.O_RDONLY)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken[0] + 64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    with contextlib.suppress(OSError):
        while True:
            taken.append(os.dup(taken[0]))
    for descriptor in taken[:spare]:
        os.close(descriptor)
    return compile_model()


def compile_while_cache_vanishes():
    """compile_model, while another thread goes on removing all that is in the cache directory."""
    import shutil

    root, done = os.environ["TORCHINDUCTOR_CACHE_DIR"], threading.Event()

    def remove():
        while not done.wait(0.001):
            shutil.rmtree(root, ignore_errors=True)

    remover = threading.Thread(target=remove)
    remover.start()
    try:
        return compile_model()
    finally:
        done.set()
        remover.join()


def compile_until_mended(cache):
    """Compile where a file is in the way of the cache directory, and again when it is gone; where each was kept."""
    from unittest import mock

    import torch

    with open(cache, "w"):
        pass
    first = compile_model()
    kept = [os.environ["TORCHINDUCTOR_CACHE_DIR"]]
    os.unlink(cache)
    torch._dynamo.reset()
    compile_model()
    kept.append(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    torch._dynamo.reset()
    with mock.patch.object(time, "monotonic", lambda monotonic=time.monotonic: monotonic() + 61):
        compile_model()
    kept.append(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    return first | {"kept": kept}


def deactivate_in_the_middle():
    """Where the cache lies while a stand-in is used, and after deactivate()."""
    import safecache

    compile_model()
    during = os.environ["TORCHINDUCTOR_CACHE_DIR"]
    safecache.deactivate()
    return [during, os.environ["TORCHINDUCTOR_CACHE_DIR"], "_SAFECACHE_REDIRECTED" in os.environ]


def write_atomically(directory):
    """What write_atomic leaves, or raises, for each kind of content and place."""
    import pathlib

    from torch._inductor import codecache

    os.makedirs(os.path.join(directory, "folder"))
    os.chdir(directory)
    with open("file", "w"):
        pass
    cases = [
        ("bytes", b"\xff\r\n"),
        (pathlib.Path("text"), "ä\r\n"),
        ("utf-8", "ä", False, True),
        ("made/below/it", "text", True),
        ("not-made/below/it", "text"),
        ("file/below", "text", True),
        ("folder", b"content"),
        ("number", 1),
        ("surrogate", "\udc80"),
        (b"name", b"content"),
    ]
    seen = []
    for case in cases:
        try:
            codecache.write_atomic(*case)
            path = pathlib.Path(case[0])
            seen.append([path.read_bytes().hex(), oct(path.stat().st_mode)])
        except Exception as error:
            seen.append(type(error).__name__)
    return seen


def cache_in_use():
    from torch._inductor.runtime import cache_dir_utils

    return cache_dir_utils.cache_dir()


def compile_without(modules):
    """compile_model where these modules are not installed."""
    for name in modules:
        sys.modules[name] = None
    return compile_model()


def compile_with_redis(times=1):
    """compile_model with torch's own remote caches of entries on, as the environment says where; the last result."""
    import torch
    from torch._dynamo.utils import counters
    from torch._functorch import config as functorch_config
    from torch._inductor import config as inductor_config

    with inductor_config.patch(fx_graph_remote_cache=True), functorch_config.patch(enable_remote_autograd_cache=True):
        for _ in range(times):
            torch._dynamo.reset()
            counters.clear()
            result = compile_model()
        return result
