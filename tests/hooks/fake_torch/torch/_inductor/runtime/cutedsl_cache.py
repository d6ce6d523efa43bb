import torch

if torch.__version__[:4] in ("2.11", "2.12"):
    raise ModuleNotFoundError(f"No module named {__name__!r} in torch {torch.__version__}", name=__name__)


def _cache_dir():
    return torch.called("_cache_dir")


def disk_cache_get(mem_cache, module_path, config_key, runtime_key, device_index=0, device_capability=None):
    return torch.called("disk_cache_get")


def disk_cache_set(
    mem_cache, module_path, config_key, runtime_key, compiled_fn, device_index=0, device_capability=None
):
    return torch.called("disk_cache_set")
