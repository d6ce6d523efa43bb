import torch


class FileCacheManager:
    def __init__(self, key, override=False, dump=False):
        torch.called("__init__", key)

    def put(self, data, filename, binary=True):
        return torch.called("put", filename)

    def put_group(self, filename, group):
        return torch.called("put_group", filename)

    def get_file(self, filename):
        return torch.called("get_file", filename)

    def get_group(self, filename):
        return torch.called("get_group", filename)


class RedisRemoteCacheBackend:
    def __init__(self, key):
        torch.called("__init__", key)


class RemoteCacheManager:
    def __init__(self, key, override=False, dump=False):
        torch.called("__init__", key)

    def put(self, data, filename, binary=True):
        return torch.called("put", filename)

    def get_group(self, filename):
        return torch.called("get_group", filename)

    def _materialize(self, filename, data):
        return torch.called("_materialize", filename)


def triton_key():
    return torch.called("triton_key")
