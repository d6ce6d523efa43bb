import torch


def _prepare_cubins(build_dir, *, source_dir, arches):
    return torch.called("_prepare_cubins")
