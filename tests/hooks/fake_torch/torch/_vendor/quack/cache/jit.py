import os

import torch

if os.environ.get("FAKE_TORCH_WITHOUT_CUTLASS"):
    import cutlass  # noqa: F401
if torch.__version__[:4] in ("2.11", "2.12"):
    raise ModuleNotFoundError(f"No module named {__name__!r} in torch {torch.__version__}", name=__name__)


def get_cache_path():
    return torch.called("get_cache_path")


class FileLock:
    def __enter__(self):
        return torch.called("__enter__")

    def __exit__(self, *exc):
        return torch.called("__exit__")
