import os

import torch


def _try_load_aot_compiled_fn(model, aot_compilation_path):
    return torch.called("_try_load_aot_compiled_fn", aot_compilation_path)


def save(source, target):
    os.replace(source, target)
