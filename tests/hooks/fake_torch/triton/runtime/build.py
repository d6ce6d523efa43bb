import torch


def _load_module_from_path(name, path):
    return torch.called("_load_module_from_path", name, path)


def _build(name, src, srcdir, library_dirs, include_dirs, libraries, ccflags, language="c"):
    return torch.called("_build", name)
