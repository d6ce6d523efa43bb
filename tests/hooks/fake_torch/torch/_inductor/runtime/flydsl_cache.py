import torch


def _cache_dir():
    return torch.called("flydsl._cache_dir")


def configure_flydsl_cache_dir():
    return torch.called("configure_flydsl_cache_dir")
