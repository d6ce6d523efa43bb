import torch


def cpp_compiler_search(search):
    return torch.called("cpp_compiler_search", search)


def run_compile_cmd(cmd_line, cwd):
    return torch.called("run_compile_cmd", cmd_line)
