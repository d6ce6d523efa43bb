import torch


def _load_module_from_path(name, path):
    return torch.called("_load_module_from_path", name, path)
