import torch


def cpp_compiler_search(search):
    return torch.called("cpp_compiler_search", search)


def run_compile_cmd(cmd_line, cwd):
    return torch.called("run_compile_cmd", cmd_line)


class CppBuilder:
    def __init__(self, name, sources, BuildOption, output_dir=""):
        torch.called("__init__")

    def build(self):
        return torch.called("build")

    def get_target_file_path(self):
        return torch.called("get_target_file_path")


def install_gcc_via_conda():
    return torch.called("install_gcc_via_conda")
