import torch


def fx_codegen_and_compile(gm, example_inputs, inputs_to_check, compile_region_name=None, **graph_kwargs):
    return torch.called("fx_codegen_and_compile", gm)


def compile_fx(
    model_,
    example_inputs_,
    inner_compile=None,
    config_patches=None,
    decompositions=None,
    ignore_shape_env=False,
    compile_region_name=None,
):
    return torch.called("compile_fx", model_)


def _compile_fx_inner(gm, example_inputs, compile_region_name=None, **graph_kwargs):
    return torch.called("_compile_fx_inner", gm)
