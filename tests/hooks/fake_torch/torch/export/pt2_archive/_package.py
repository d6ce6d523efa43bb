import pickle

import torch

__all__ = ["pickle"]


def _load_aoti(file, model_name, run_single_threaded, num_runners, device_idx):
    return torch.called("_load_aoti", file)


def load_pt2(
    f,
    *,
    expected_opset_version=None,
    run_single_threaded=False,
    num_runners=1,
    device_index=-1,
    load_weights_from_disk=False,
):
    return torch.called("load_pt2", f)


def package_pt2(
    f,
    *,
    exported_programs=None,
    aoti_files=None,
    extra_files=None,
    opset_version=None,
    pickle_protocol=2,
    executorch_files=None,
):
    return torch.called("package_pt2", f)
