import torch

if torch.__version__[:4] in ("2.11", "2.12", "2.13"):
    raise ModuleNotFoundError(f"No module named {__name__!r} in torch {torch.__version__}", name=__name__)


class PrecompiledModule:
    def to_cache_bytes(self, python_code=None):
        return torch.called("to_cache_bytes")


class _PrecompileApi:
    def load(self, python_code, cache):
        return torch.called("load")


def _write_artifact(artifact_path, cache_path, python_code, cache):
    return torch.called("_write_artifact", artifact_path)


def _read_artifact(artifact_path, cache_path):
    return torch.called("_read_artifact", artifact_path)
