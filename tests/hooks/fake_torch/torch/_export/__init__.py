import torch


def aot_load(so_path, device):
    return torch.called("aot_load", so_path)
