import torch


def find_cuda_home() -> str:
    return torch.called("find_cuda_home")
