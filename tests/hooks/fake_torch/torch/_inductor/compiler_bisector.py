import torch


class CompilerBisector:
    @classmethod
    def read_lines_from_file(cls, file_path):
        return torch.called("read_lines_from_file", file_path)

    @classmethod
    def write_lines_to_file(cls, file_path, lines, *, append=False):
        return torch.called("write_lines_to_file", file_path)
