import torch


class VecISA:
    def check_build(self, code):
        return torch.called("check_build", code)

    def _probe_load(self, output_path):
        return torch.called("_probe_load", output_path)


def valid_vec_isa_list():
    return torch.called("valid_vec_isa_list")
