import sympy

import torch

__all__ = ["sympy"]


def deserialize_torch_artifact(serialized):
    return torch.called("deserialize_torch_artifact", serialized)
