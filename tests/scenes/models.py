"""What the scenes compile: models of a few operators, in a module that imports torch."""

from __future__ import annotations

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass


def model(x, w):
    return torch.nn.functional.gelu(x @ w).sum(-1)


def scale(x):
    return model(x, x.T)


def function(x):
    return torch.nn.functional.gelu(x @ x.T).sum(-1)


class Module(torch.nn.Module):
    def forward(self, x):
        return function(x)


class Tanh(torch.nn.Module):
    def forward(self, x):
        return torch.tanh(x) + 1


def call(module, x):
    return module(x)


class Pass(CustomGraphPass):
    """Does nothing, in the version of its source that its uuid tells."""

    def __init__(self, version):
        self.version = version

    def __call__(self, graph):
        pass

    def uuid(self):
        return f"the source of version {self.version}".encode()
