import pickle  # noqa: F401

import torch


def get_local_code_state(cache_key):
    return torch.called("get_local_code_state", cache_key)


def lookup_remote_cache_entry(remote_cache, cache_key, event_name=None):
    return torch.called("lookup_remote_cache_entry", cache_key)


def put_local_code_state(cache_key):
    return torch.called("put_local_code_state", cache_key)


def put_remote_code_state(cache_key, extra_code_state=False):
    return torch.called("put_remote_code_state", cache_key)
