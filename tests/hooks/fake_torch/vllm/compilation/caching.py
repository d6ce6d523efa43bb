import torch


def reconstruct_serializable_fn_from_mega_artifact(
    state, standalone_compile_artifacts, vllm_config, sym_shape_indices_map, returns_tuple_map, fake_mode
):
    return torch.called("reconstruct_serializable_fn_from_mega_artifact")
