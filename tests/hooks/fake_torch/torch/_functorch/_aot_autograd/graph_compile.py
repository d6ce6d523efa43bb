import torch


def _aot_stage2b_bw_compile(
    bw_module,
    maybe_subclass_meta,
    fw_metadata,
    fwd_output_strides,
    num_symints_saved_for_bw,
    aot_config,
    bw_compiler,
):
    return torch.called("_aot_stage2b_bw_compile", bw_module)
