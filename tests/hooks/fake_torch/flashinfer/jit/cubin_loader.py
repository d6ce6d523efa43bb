import torch


def get_artifact(file_name, sha256, session=None):
    return torch.called("get_artifact")


def setup_cubin_loader(dll_path):
    torch.called("setup_cubin_loader")
