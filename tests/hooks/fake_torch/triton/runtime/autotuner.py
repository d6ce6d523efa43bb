import torch


class Autotuner:
    def prune_configs(self, kwargs):
        return torch.called("prune_configs", kwargs)

    def _bench(self, *args, config, **meta):
        return torch.called("_bench", config)
