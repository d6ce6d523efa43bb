import pickle  # noqa: F401
from types import SimpleNamespace

import torch
from torch._inductor.codecache import FxGraphCachePickler, GuardedCache

config = SimpleNamespace(strict_autograd_cache=False)


class FXGraphCacheMiss(Exception):
    pass


def autograd_cache_key(mod, example_inputs, config, compiler_config_extra=None, act_input_paths=()):
    return torch.called("autograd_cache_key", mod)


class AOTAutogradCachePickler(FxGraphCachePickler):
    pass


class AOTAutogradCache(GuardedCache):
    @staticmethod
    def try_load(
        mod, args, aot_config, compiler_config_extra, local, remote, act_input_paths=(), compile_region_name=None
    ):
        return torch.called("try_load", mod)

    @staticmethod
    def save(key, entry, remote):
        return torch.called("save", key, entry, remote)

    @staticmethod
    def _handle_save_error(e, remote, is_bypass):
        return torch.called("_handle_save_error", e)

    @staticmethod
    def _write_to_local_cache(key, content):
        return torch.called("aot._write_to_local_cache", key, content)


torch.reached("end", globals())
