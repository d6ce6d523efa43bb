import torch


class RedisRemoteCacheBackend:
    def __init__(self, cache_id):
        torch.called("__init__", cache_id)
