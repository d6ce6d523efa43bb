import torch


class Library:
    ns = "fake"
    dispatch_key = ""

    def impl(self, op_name, fn, dispatch_key="", *, with_keyset=False, allow_override=True):
        return torch.called("Library.impl", op_name)
