import torch


class AOTCompiledFunction:
    @classmethod
    def serialize(cls, fn, external_data=None):
        return torch.called("AOTCompiledFunction.serialize", fn)

    @classmethod
    def deserialize(cls, data, f_globals=None, external_closure_data=None):
        return torch.called("AOTCompiledFunction.deserialize", data)


class AOTCompiledModel:
    def serialize(self):
        return torch.called("AOTCompiledModel.serialize")

    @classmethod
    def deserialize(cls, model, data):
        return torch.called("AOTCompiledModel.deserialize", data)
