"""Programs of torch.export: saved, with something planted in them, and loaded."""

from __future__ import annotations

import fractions
import io
import json
import pickle
import zipfile


class Marker:
    """Its unpickling leaves a file."""

    def __init__(self, path) -> None:
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def save_program(path, to_buffer=False):
    """A model with a weight and a constant, and what it computes."""
    import torch

    program = torch.export.export(_model(), (torch.arange(4.0),))
    if to_buffer:
        buffer = io.BytesIO()
        torch.export.save(program, buffer)
        with open(path, "wb") as file:
            file.write(buffer.getvalue())
    else:
        torch.export.save(program, path)


def save_program_with_more(path):
    """With an object in its inputs that weights are not."""
    import torch

    class Model(torch.nn.Module):
        def forward(self, x, scale):
            return x * scale

    program = torch.export.export(Model(), (torch.arange(4.0), 2.0))
    program._example_inputs = ((torch.arange(4.0), fractions.Fraction), {})
    torch.export.save(program, path)


def load_inputs(path, how="path"):
    """The name of the object in the sample inputs."""
    return _load(path, how).example_inputs[0][1].__name__


def adopt_program(path):
    """Seal it, on the user's word."""
    from safecache.code import packages

    return packages.adopt(path)


def has_opaque_objects():
    """Whether this release writes objects of any class."""
    from torch.export.pt2_archive import _package

    return hasattr(_package, "pickle")


def load_program(path, how="path", times=1):
    """What the program computes."""
    import torch

    for _ in range(times):
        found = _load(path, how)
    return found.module()(torch.arange(4.0)).tolist()


def _load(path, how):
    import torch
    from torch.export.pt2_archive._package import load_pt2

    if how == "load_pt2":
        return load_pt2(path).exported_programs["model"]
    if how == "path":
        return torch.export.load(path)
    with open(path, "rb") as file:
        return torch.export.load(io.BytesIO(file.read()))


def _model():
    import torch

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.full((4,), 2.0))
            self.constant = torch.arange(4.0)

        def forward(self, x):
            return x * self.weight + self.constant

    return Model()


def pickled(marker):
    """As torch.save writes it, with something that runs."""
    import torch

    buffer = io.BytesIO()
    torch.save(Marker(marker), buffer)
    return buffer.getvalue()


def plant(path, where, marker):
    """Have the archive run something when it is loaded; anybody can, who can write it. It is not sealed any more."""
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    top = next(iter(members)).partition("/")[0]
    if where == "sample inputs":
        members[f"{top}/data/sample_inputs/model.pt"] = pickled(marker)
    elif where in ("weights", "constants"):
        _plant_payload(members, top, where, pickled(marker), {"weights": "weight_", "constants": "tensor_"}[where])
    elif where in ("object", "script object"):
        prefix = {"object": "opaque_obj_", "script object": "custom_obj_"}[where]
        _plant_payload(members, top, "constants", pickle.dumps(Marker(marker)), prefix)
    elif where == "expression":
        name = f"{top}/models/model.json"
        program = json.loads(members[name])
        text = f"__import__('builtins').open({str(marker)!r}, 'w') and 4"
        sizes = [{"as_expr": {"expr_str": text, "hint": {"as_int": 4}}}]
        program["graph_module"]["graph"]["tensor_values"]["x"]["sizes"] = sizes
        members[name] = json.dumps(program).encode()
    elif where == "legacy":
        from torch._export.serde.schema import SCHEMA_VERSION

        members = {
            "version": ".".join(map(str, SCHEMA_VERSION)).encode(),
            "serialized_exported_program.json": members[f"{top}/models/model.json"],
            "serialized_state_dict.pt": pickled(marker),
            "serialized_constants.pt": pickled(marker),
            "serialized_example_inputs.pt": pickled(marker),
        }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        if where == "twice":
            archive.writestr(f"{top}/data/sample_inputs/model.pt", pickled(marker))


def _plant_payload(members, top, kind, content, prefix):
    """In place of a tensor that is written plainly, or a constant of another kind."""
    config = f"{top}/data/{kind}/model_{kind}_config.json"
    stated = json.loads(members[config])
    name = next(iter(stated["config"]))
    stated["config"][name]["use_pickle"] = True
    stated["config"][name]["path_name"] = f"{prefix}planted"
    members[f"{top}/data/{kind}/{prefix}planted"] = content
    members[config] = json.dumps(stated).encode()
