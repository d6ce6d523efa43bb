"""What is done in a test's child process with artifacts: saved, loaded, arriving in mega-caches and bundles.

Every ``load_…`` returns whether it was a hit.
"""

from __future__ import annotations

import base64
import contextlib
import importlib
import os
import pickle
import pkgutil
import sys
import tempfile
from unittest import mock

from scenes import model_scenes


def example():
    import torch

    torch.manual_seed(0)
    return torch.randn(8, 16)


def check(compiled):
    import torch

    from scenes.models import function

    x = example()
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), function(x))
    return True


def _read(path):
    with open(path, "rb") as file:
        return file.read()


def _write(path, content):
    with open(path, "wb") as file:
        file.write(content)


@contextlib.contextmanager
def _ahead_of_time():
    import torch

    with model_scenes.offering_aot_compile(), torch.no_grad():
        yield


def save_function(path):
    import torch

    from scenes.models import function

    with _ahead_of_time():
        compiled = torch.compile(function, fullgraph=True).aot_compile(((example(),), {}))
    compiled.save_compiled_function(path)


def load_function(path):
    import torch

    with open(path, "rb") as file:
        return check(torch.compiler.load_compiled_function(file))


def save_model(path):
    import torch
    from torch._dynamo.aot_compile import ModelInput

    from scenes.models import Module

    with _ahead_of_time():
        module = torch.compile(Module(), fullgraph=True)
        module._aot_compile([ModelInput((example(),), {}, [torch.no_grad()])])
        content = module._save_aot_compiled_module()
    _write(path, content)


def load_model(path):
    from torch._dynamo.aot_compile import AOTCompiledModel

    from scenes.models import Module

    return check(AOTCompiledModel.deserialize(Module(), _read(path)))


def _standalone(**options):
    import torch._inductor

    graph, x = model_scenes._standalone_graph()
    return torch._inductor.standalone_compile(graph, [x], dynamic_shapes="from_example_inputs", **options)


def _check_standalone(artifact):
    import torch

    from scenes.models import model

    _, x = model_scenes._standalone_graph()
    torch.testing.assert_close(model_scenes._first(artifact(x)), model(x, x.T @ x))
    return True


def save_bundled(path):
    _write(path, _standalone(aot=True).serialize())


def load_bundled(path):
    module = sys.modules["torch._inductor.standalone_compile"]
    return _check_standalone(module.AOTCompiledArtifact.deserialize(_read(path)))


def save_bundled_as_file(path):
    _standalone(aot=True).save(path=path)


def save_graph_module(path):
    import torch
    from torch._dynamo.aot_compile_types import GraphModuleSerializableCallable as Callable

    from scenes.models import Module

    _write(path, Callable.serialize_compile_artifacts(Callable(torch.fx.symbolic_trace(Module()))))


def load_graph_module(path):
    from torch._dynamo.aot_compile_types import GraphModuleSerializableCallable as Callable

    return check(Callable.deserialize_compile_artifacts(_read(path)))


def save_precompile(path):
    from torch._dynamo.precompile_context import PrecompileContext

    _compile_with_precompile()
    PrecompileContext.save_to_dynamo_cache()


def load_precompile(path):
    from torch._dynamo.utils import counters

    _compile_with_precompile()
    return counters["dynamo_cache"]["dynamo_cache_hit"] > 0


def _compile_with_precompile():
    import torch

    from scenes.models import function

    with torch._dynamo.config.patch(caching_precompile=True), torch.no_grad():
        check(torch.compile(function))


def precompile_of(directory, name):
    """Compile ``forward`` of this module: whether that was a hit, and computes what the module's own does."""
    import torch
    from torch._dynamo.precompile_context import PrecompileContext
    from torch._dynamo.utils import counters

    sys.path.insert(0, directory)
    forward = importlib.import_module(name).forward
    with torch._dynamo.config.patch(caching_precompile=True), torch.no_grad():
        is_same = torch.allclose(torch.compile(forward)(example()), forward(example()), atol=1e-4)
    PrecompileContext.save_to_dynamo_cache()
    return [counters["dynamo_cache"]["dynamo_cache_hit"] > 0, is_same]


def read_precompile(path):
    """The entry at ``path`` through the interface that has no miss."""
    from torch._dynamo.package import DiskDynamoStore

    DiskDynamoStore().read(os.path.dirname(path))


@contextlib.contextmanager
def _job(remote=None, mast=None):
    """``mast``: the name of a job of MAST, which torch asks its scheduler for, in place of a name of the user's."""
    import torch
    from torch._dynamo import pgo

    pgo.reset_code_state()
    with (
        torch.compiler.config.patch(job_id=None if mast else "job"),
        mock.patch.object(torch._utils_internal, "get_mast_job_name_version", lambda: (mast, 1) if mast else None),
        mock.patch.object(pgo, "get_remote_cache", lambda: remote),
        torch._dynamo.config.patch(automatic_dynamic_local_pgo=remote is None),
    ):
        yield pgo


def save_profile(path, remote=None, mast=None):
    import torch

    from scenes.models import function

    with _job(model_scenes.FakeRedis(remote) if remote else None, mast), torch.no_grad():
        compiled = torch.compile(function)
        for rows in 8, 9:
            compiled(torch.randn(rows, 16))


def load_profile(path, remote=None, mast=None):
    import torch

    from scenes.models import function

    with _job(model_scenes.FakeRedis(remote) if remote else None, mast) as pgo:
        hit = len(pgo.get_code_state()) > 0
        with torch.no_grad():
            check(torch.compile(function))
    return hit


@contextlib.contextmanager
def _memoizer(directory):
    from torch._inductor.runtime.caching import config, interfaces

    with (
        mock.patch.object(config, "IS_CACHING_MODULE_ENABLED", lambda: True),
        mock.patch.object(tempfile, "tempdir", directory),
    ):
        yield interfaces.PersistentMemoizer(sub_dir="sub")


def save_memo(path):
    with _memoizer(path) as memoizer:
        assert memoizer.record()(lambda x: [x])(7) == [7]


def load_memo(path):
    with _memoizer(path) as memoizer:
        try:
            return memoizer.replay()(lambda x: [x])(7) == [7]
        except KeyError:
            return False


def value_of_memo(path, value):
    """What torch's own cache for that keeps, and gives back."""
    from torch._inductor.runtime.caching import implementations

    with mock.patch.object(tempfile, "tempdir", path):
        cache = implementations._OnDiskCacheImpl("sub")
        kept = cache.insert("key", value.encode()), cache.insert("key", b"another")
        return *kept, cache.get("key").value.decode()


def save_standalone(path):
    _standalone().save(path=path, format="binary")


def load_standalone(path):
    from torch._inductor import CompiledArtifact

    return _check_standalone(CompiledArtifact.load(path=path, format="binary"))


def save_unpacked_over(path):
    """Save an unpacked artifact where one lies whose files cannot be removed."""
    artifact = _standalone()
    with mock.patch("shutil.rmtree"):
        artifact.save(path=path, format="unpacked")


def populate(artifacts):
    """Take (type, key, content) as if they had arrived in a mega-cache artifact, and say what is loaded of them."""
    from torch.compiler import _cache

    manager = _cache.CacheArtifactManager
    manager._ensure_cache_artifacts_registered()
    arrived = {}
    for name, key, content in artifacts:
        artifact = _cache.CacheArtifactFactory.create(name, key, base64.b64decode(content))
        arrived.setdefault(name, []).append(artifact)
    return {name: keys for name, keys in manager.populate_caches(arrived).artifacts.items() if keys}


def populate_and_load(artifacts, load, path):
    """populate(), and then ask for what arrived."""
    populate(artifacts)
    return pkgutil.resolve_name(load)(path)


def plant_in_standalone(path, marker):
    """Replace every entry in a binary artifact by a hostile pickle, as somebody would who has torch."""
    from faults.damage import Marker
    from torch.compiler._cache import CacheArtifactManager
    from torch.utils._appending_byte_serializer import BytesReader, BytesWriter

    reader = BytesReader(_read(path))
    header, torch_key, key, blob = reader.read_bytes(), reader.read_bytes(), reader.read_str(), reader.read_bytes()
    hostile = pickle.dumps(Marker(marker))
    with CacheArtifactManager.with_fresh_cache():
        for name, found in CacheArtifactManager.deserialize(blob).items():
            for artifact in found if name in ("inductor", "aot_autograd") else ():
                CacheArtifactManager.record_artifact(name, artifact.key, hostile)
        planted, _ = CacheArtifactManager.serialize()
    writer = BytesWriter()
    writer.write_bytes(header)
    writer.write_bytes(torch_key)
    writer.write_str(key)
    writer.write_bytes(planted)
    _write(path, writer.to_bytes())


def save_profile_mega_cache(path, mast=None):
    import torch
    from torch.compiler import _cache

    with _cache.CacheArtifactManager.with_fresh_cache():
        save_profile(path, mast=mast)
        blob, info = torch.compiler.save_cache_artifacts()
    _write(path, blob)
    return info.pgo_artifacts


def load_profile_mega_cache(path, mast=None):
    import torch

    with _job(mast=mast):
        torch.compiler.load_cache_artifacts(_read(path))
    return load_profile(path, mast=mast)


def populate_profile(artifacts, mast):
    """populate(), and then ask for the profile of that job of MAST."""
    with _job(mast=mast):
        populate(artifacts)
    return load_profile("", mast=mast)


def _tuner(filename, **more):
    """What torch looks results of autotuning up with, and the candidates that Inductor proposes."""
    import triton
    from torch._inductor.runtime import autotune_cache

    candidates = [triton.Config({"XBLOCK": size}, num_warps=4, num_stages=1) for size in (64, 128)]
    meta = {"autotune_local_cache": True, "autotune_remote_cache": False, "coordinate_descent_tuning": True} | more
    return autotune_cache.AutotuneCache.create(meta, filename, "the hash of the candidates"), meta, candidates


def save_tuning(filename, size, coordesc=False):
    """Save that the kernel at ``filename`` is fastest with blocks of this size."""
    import triton

    os.makedirs(os.path.dirname(filename), exist_ok=True)
    tuner, _, candidates = _tuner(filename)
    best = next((each for each in candidates if each.kwargs["XBLOCK"] == size), None)
    tuner.save(best or triton.Config({"XBLOCK": size}, num_warps=8, num_stages=1), 1000000, coordesc)


def read_tuning(filename):
    """The size of block to launch that kernel with; None if it is to be tuned. And whether a candidate was altered."""
    tuner, meta, candidates = _tuner(filename)
    best = tuner.read_best(meta, candidates)
    altered = any(getattr(each, "extra_options", None) for each in candidates)
    return {"size": best and best.kwargs["XBLOCK"], "altered": altered}


def load_bundle(names):
    """Take a bundle of autotuning results with these names from a remote cache."""
    from torch._inductor.runtime import autotune_cache

    remote = mock.Mock(get=lambda key: {name: {"configs_hash": "x"} for name in names})
    return autotune_cache._AutotuneCacheBundlerImpl("key", remote)._load_cache()


def load_bundle_from_redis(bundle):
    """As load_bundle(), where the server has this."""
    import redis
    from torch._inductor import remote_cache
    from torch._inductor.runtime import autotune_cache

    cache = remote_cache.RemoteBundledAutotuneCache("bundled-autotune-v1")
    redis.Redis.from_url(os.environ["TORCHINDUCTOR_REDIS_URL"]).set(cache._get_key("key"), bytes.fromhex(bundle))
    return autotune_cache._AutotuneCacheBundlerImpl("key", cache)._load_cache()


def tune_with_redis(filename):
    """The size of block that torch's remote cache knows for a kernel; and after one of 128 was saved there."""
    os.makedirs(os.path.dirname(filename), exist_ok=True)
    found = []
    for _ in range(2):
        tuner, meta, candidates = _tuner(filename, autotune_remote_cache=True, backend_hash="of this machine")
        assert tuner.remote_cache
        best = tuner.read_best(meta, candidates)
        found.append(best and best.kwargs["XBLOCK"])
        tuner.save(candidates[1], 1000000, False)
    return {"first": found[0], "second": found[1]}


class _Choice:
    """A way to compute a product, among which max-autotune chooses."""

    def __init__(self, name):
        self.name = name

    def hash_key(self):
        return self.name


def choose():
    """What max-autotune finds that each of two choices takes, and whether it had to measure that."""
    from torch._inductor import codecache

    measured = []

    def benchmark(choices):
        measured.extend(choice.name for choice in choices)
        return dict.fromkeys(choices, 1.5)

    codecache.PersistentCache.get_local_cache_path.cache_clear()
    times = codecache.PersistentCache().lookup([_Choice("one"), _Choice("two")], "mm", "inputs", benchmark)
    return {"times": {choice.name: time for choice, time in times.items()}, "measured": measured}
