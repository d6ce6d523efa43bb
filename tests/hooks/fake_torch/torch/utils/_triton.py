import torch


def _raise_triton_cache_load_error(exc):
    return torch.called("_raise_triton_cache_load_error", exc)
