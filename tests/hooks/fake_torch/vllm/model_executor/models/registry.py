import torch


class _LazyRegisteredModel:
    def _load_modelinfo_from_cache(self, module_hash):
        return torch.called("_load_modelinfo_from_cache", module_hash)

    def _save_modelinfo_to_cache(self, mi, module_hash):
        return torch.called("_save_modelinfo_to_cache", module_hash)
