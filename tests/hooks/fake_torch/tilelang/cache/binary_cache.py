import torch


class BinaryCache:
    @classmethod
    def _get_namespace_root(cls):
        return torch.called("_get_namespace_root")

    @classmethod
    def load(cls, key, compile_format):
        return torch.called("load")

    @classmethod
    def save(cls, key, compile_format, data):
        return torch.called("save")
