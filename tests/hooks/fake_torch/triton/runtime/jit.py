import torch


class JITFunction:
    def _do_compile(self, key, signature, device, constexprs, options, attrs, warmup):
        return torch.called("_do_compile", key)
