import torch


def load_compiled_function(file, *, f_globals=None, external_data=None):
    return torch.called("load_compiled_function", file)
