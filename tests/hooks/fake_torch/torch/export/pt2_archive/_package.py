import torch


def _load_aoti(file, model_name, run_single_threaded, num_runners, device_idx):
    return torch.called("_load_aoti", file)
