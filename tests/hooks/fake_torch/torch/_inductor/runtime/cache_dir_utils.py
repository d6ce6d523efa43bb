import torch


def cache_dir():
    return torch.called("cache_dir")


def default_cache_dir():
    return torch.called("default_cache_dir")
