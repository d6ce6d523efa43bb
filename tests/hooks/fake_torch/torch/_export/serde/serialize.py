import sympy

import torch

__all__ = ["sympy"]


def deserialize_torch_artifact(serialized):
    return torch.called("deserialize_torch_artifact", serialized)


class ExportedProgramDeserializer:
    def deserialize(
        self, exported_program, state_dict, constants, example_inputs=None, *, _unsafe_skip_version_check=False
    ):
        return torch.called("deserialize", exported_program)
