import torch


class FileLock:
    def __enter__(self):
        return torch.called("__enter__")

    def __exit__(self, exc_type, exc_val, exc_tb):
        return torch.called("__exit__")
