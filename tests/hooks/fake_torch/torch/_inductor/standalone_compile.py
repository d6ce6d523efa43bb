import pickle  # noqa: F401

import torch


class CompiledArtifact:
    @staticmethod
    def load(*, path, format="binary"):
        return torch.called("CompiledArtifact.load", path, format)


class CacheCompiledArtifact(CompiledArtifact):
    def __init__(self, compiled_fn, artifacts):
        torch.called("CacheCompiledArtifact", compiled_fn, artifacts)

    def is_saveable(self):
        return True

    def save(self, *, path, format="binary"):
        return torch.called("CacheCompiledArtifact.save", path, format)

    @staticmethod
    def load(*, path, format="binary"):
        return torch.called("CacheCompiledArtifact.load", path, format)


torch.reached("end", globals())
