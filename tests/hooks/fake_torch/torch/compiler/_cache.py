import torch


class CacheArtifactManager:
    @staticmethod
    def deserialize(serialized_artifacts):
        return torch.called("deserialize", serialized_artifacts)

    @staticmethod
    def populate_caches(artifacts):
        return torch.called("populate_caches", artifacts)


torch.reached("end", globals())
