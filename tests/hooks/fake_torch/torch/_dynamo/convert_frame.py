import torch


class ConvertFrame:
    def __call__(self, frame, cache_entry, hooks, frame_state, skip=0):
        return torch.called("ConvertFrame.__call__", frame)
