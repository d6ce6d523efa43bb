import torch


class JITPersistentCache:
    def __init__(self, cache_path):
        torch.called("__init__")

    def _try_load_from_storage(self, key):
        return torch.called("_try_load_from_storage")

    def _try_export_to_storage(self, key, fn):
        torch.called("_try_export_to_storage")
