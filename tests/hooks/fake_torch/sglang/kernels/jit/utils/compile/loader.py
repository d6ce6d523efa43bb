import torch


def _load(library):
    return torch.called("_load")
