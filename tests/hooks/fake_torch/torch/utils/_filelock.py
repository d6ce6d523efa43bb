import torch


class FileLock:
    timeout = 600
    lock_file = "lock"

    def __enter__(self):
        return torch.called("FileLock", self.timeout)

    def __exit__(self, exc_type, exc_value, traceback):
        return torch.called("FileLock.__exit__")
