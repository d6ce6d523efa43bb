import torch


class CompiledAOTI:
    def __post_init__(self):
        torch.called("CompiledAOTI.__post_init__")
