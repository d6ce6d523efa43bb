import torch


def fx_codegen_and_compile(gm, example_inputs, inputs_to_check, compile_region_name=None, **graph_kwargs):
    return torch.called("fx_codegen_and_compile", gm)
