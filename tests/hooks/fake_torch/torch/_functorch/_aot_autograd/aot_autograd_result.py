import torch


def deserialize_bundled_cache_entry(entry):
    return torch.called("deserialize_bundled_cache_entry", entry)
