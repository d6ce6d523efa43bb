import torch


class CUDAPluggableAllocator:
    def __init__(self, path_to_so_file, alloc_fn_name, free_fn_name):
        torch.called("CUDAPluggableAllocator.__init__", path_to_so_file)
