import torch


def get_cache_path():
    return torch.called("get_cache_path")


class FileLock:
    def __enter__(self):
        return torch.called("__enter__")

    def __exit__(self, *exc):
        return torch.called("__exit__")
