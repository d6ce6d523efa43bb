import torch


class CacheArtifactManager:
    @staticmethod
    def populate_caches(artifacts):
        return torch.called("populate_caches", artifacts)


torch.reached("end", globals())
