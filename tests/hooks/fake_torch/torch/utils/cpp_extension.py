import torch


def _import_module_from_library(module_name, path, is_python_module):
    return torch.called("_import_module_from_library", module_name)


def _run_ninja_build(build_directory, verbose, error_prefix):
    return torch.called("_run_ninja_build", build_directory)
