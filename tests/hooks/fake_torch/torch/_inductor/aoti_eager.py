import torch


def aoti_eager_cache_dir(namespace, device):
    return torch.called("aoti_eager_cache_dir", namespace)


def load_aoti_eager_cache(ns, op_func_name_with_overload, device_type):
    return torch.called("load_aoti_eager_cache", ns)


def aoti_compile_with_persistent_cache(
    ns,
    op_func_name_with_overload,
    device_type,
    dynamic,
    f,
    args,
    kwargs,
    *,
    dynamic_shapes=None,
    options=None,
    remove_runtime_assertions=False,
    disable_constraint_solver=False,
):
    return torch.called("aoti_compile_with_persistent_cache", ns)
