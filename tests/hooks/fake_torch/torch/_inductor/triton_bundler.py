import torch


class TritonBundler:
    @classmethod
    def put_static_autotuner(cls, key, kernel):
        return torch.called("put_static_autotuner", key)


torch.reached("end", globals())
