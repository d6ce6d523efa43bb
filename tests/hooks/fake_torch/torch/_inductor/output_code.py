import torch


class CompiledAOTI:
    def __post_init__(self):
        torch.called("CompiledAOTI.__post_init__")


class CompiledFxGraph:
    def write_to_disk(self):
        return torch.called("write_to_disk")
