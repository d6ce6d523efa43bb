import torch


def load(f, *, extra_files=None, expected_opset_version=None):
    return torch.called("load", f)
