import torch


def update_deep_gemm_config(gpu_id: int):
    torch.called("update_deep_gemm_config")
