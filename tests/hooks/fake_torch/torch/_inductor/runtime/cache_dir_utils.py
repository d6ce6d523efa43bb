import torch


def default_cache_dir():
    return torch.called("default_cache_dir")
