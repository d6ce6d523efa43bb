import torch


def write_if_different(path, content):
    torch.called("write_if_different")


class JitSpec:
    def build_and_load(self):
        return torch.called("build_and_load")


class JitSpecNvcc(JitSpec):
    def try_load(self):
        return torch.called("try_load")

    def write_ninja(self):
        torch.called("write_ninja")

    def load(self, so_path=None):
        return torch.called("load")
