import torch


def should_use_remote_autograd_cache():
    return torch.called("should_use_remote_autograd_cache")
