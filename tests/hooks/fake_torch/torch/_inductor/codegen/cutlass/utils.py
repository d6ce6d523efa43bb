import torch


def try_import_cutlass():
    return torch.called("try_import_cutlass")
