import torch


class FileLock:
    exclusive, lock_path = True, "lock"

    def __enter__(self):
        return torch.called("__enter__")


class JITPersistentCache:
    def __init__(self, cache_path, *, enable_tvm_ffi=True):
        torch.called("__init__")

    def _try_load_from_storage(self, key):
        return torch.called("_try_load_from_storage")

    def _try_export_to_storage(self, key, fn):
        return torch.called("_try_export_to_storage")
