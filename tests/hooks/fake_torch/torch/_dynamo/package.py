import pickle  # noqa: F401

import torch


class DiskDynamoStore:
    def write(self, cache_entry, path):
        return torch.called("DiskDynamoStore.write", path)

    def read(self, path):
        return torch.called("DiskDynamoStore.read", path)


class DiskDynamoCache(DiskDynamoStore):
    def load(self, fn):
        return torch.called("DiskDynamoCache.load", fn)
