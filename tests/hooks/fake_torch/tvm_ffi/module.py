import torch


def load_module(path, keep_module_alive=True):
    return torch.called("load_module")
