import torch


def _import_deep_gemm():
    return torch.called("_import_deep_gemm")
