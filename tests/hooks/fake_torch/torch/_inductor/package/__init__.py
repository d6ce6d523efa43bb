import torch


def load_package(path, model_name="model", run_single_threaded=False, num_runners=1, device_index=-1):
    return torch.called("load_package", path)
