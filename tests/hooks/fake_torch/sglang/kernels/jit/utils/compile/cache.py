import torch


def build_key_dir(*, module_name, build_key):
    return torch.called("build_key_dir")


def find_prebuilt(*, scope, module_name):
    return torch.called("find_prebuilt")


def _publish(*, staging, leaf):
    return torch.called("_publish")


def _read_deps(leaf):
    return torch.called("_read_deps")


def _file_digest(path):
    return torch.called("_file_digest")
