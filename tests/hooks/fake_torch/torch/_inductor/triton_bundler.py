import torch


class TritonBundler:
    @classmethod
    def put_static_autotuner(cls, key, kernel):
        return torch.called("put_static_autotuner", key)

    @classmethod
    def collect(cls):
        return torch.called("collect")

    @staticmethod
    def read_and_emit(bundle):
        return torch.called("read_and_emit", bundle)


torch.reached("end", globals())
