import torch


class FileBaton:
    lock_file_path = "lock"

    def try_acquire(self):
        return torch.called("FileBaton.try_acquire")

    def release(self):
        return torch.called("FileBaton.release")
