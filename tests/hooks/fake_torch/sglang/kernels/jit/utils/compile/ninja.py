import torch


def build(*, spec, build_dir, build_file):
    return torch.called("build")
