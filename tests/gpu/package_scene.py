"""Packages a model for the GPU, or loads one; prints what became of it as JSON."""

from __future__ import annotations

import json
import sys

import torch

import safecache


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.silu(x) * 2


def main(what: str, path: str) -> None:
    x = torch.linspace(-4, 4, 4096, device="cuda")
    with torch.no_grad():
        if what == "make":
            torch._inductor.aoti_compile_and_package(torch.export.export(Model(), (x,)), package_path=path)
        try:
            close = torch.allclose(torch._inductor.aoti_load_package(path)(x), Model()(x))
        except Exception as error:
            close = f"{type(error).__name__}: {error}"
    print(json.dumps({"close": close, "stats": safecache.stats()}))


main(*sys.argv[1:])
