"""Programs of torch.export: saved, with something planted in them, and loaded."""

from __future__ import annotations

import fractions
import io
import json
import pickle
import zipfile

# Text of the program that torch pastes into Python.
NAMED = ("input name", "argument name", "weight name", "guard")


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


def save_program_of_many_parts(path):
    """With guards, a branch, nested and named inputs, texts with quotes, and names with dots and digits."""
    import torch

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
            self.register_buffer("scale", torch.full((4,), 0.5))
            torch.nn.init.ones_(self.layers[0].weight)

        def forward(self, x, parts, *, how, shift):
            if x.shape[0] % 2 == 0 and 3 * x.shape[0] > 7:
                x = x + 1
            torch._check(x.shape[0] < 99, lambda: 'it\'s "too" large')
            x = x + torch.zeros(x.shape[0] * 3 // 2 + max(x.shape[0], 8) + int(x.shape[0] ** 0.5)).sum()
            x = x + torch.nn.functional.interpolate(x[None, None], scale_factor=2.5).mean()
            x = x + torch.nonzero(x).sum()
            x = torch.cond(shift.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))
            x = torch.einsum("ij,jk->ik", self.layers(x), parts["a b"][0])
            return {"sum of all": torch.div(x * self.scale, 3, rounding_mode=how).sum(dim=0), "shift": shift}

    torch.manual_seed(0)
    dynamic = {"x": {0: torch.export.Dim.DYNAMIC}, "parts": {"a b": [None]}, "how": None, "shift": None}
    kwargs = {"how": "floor", "shift": torch.arange(4.0)}
    program = torch.export.export(Model(), _make_arguments(), kwargs, dynamic_shapes=dynamic)
    torch.export.save(program, path)


def _make_arguments():
    import torch

    return torch.arange(24.0).reshape(6, 4), {"a b": [torch.ones(4, 4)]}


def load_program_of_many_parts(path, how="path"):
    """What it computes, and how many guards it has."""
    import torch

    found = _load(path, how)
    computed = found.module()(*_make_arguments(), how="floor", shift=torch.arange(4.0))
    return [computed["sum of all"].tolist(), len(found._guards_code)]


def load_inputs(path, how="path"):
    """The name of the object in the sample inputs."""
    return _load(path, how).example_inputs[0][1].__name__


def adopt_program(path):
    """Seal it, on the user's word."""
    from safecache.built_code import packages

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
    elif where in NAMED:
        _plant_name(members, top, where, str(marker))
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


def _plant_name(members, top, where, marker):
    """In place of a name, or of a condition on the inputs."""
    name = f"{top}/models/model.json"
    program = json.loads(members[name])
    signature = program["graph_module"]["module_call_graph"][0]["signature"]
    if where == "guard":
        program["guards_code"] = [f"open({marker!r}, 'w') or True"]
    elif where == "argument name":
        signature["forward_arg_names"] = [f"x=open({marker!r}, 'w')):\n    '''#"]
    text = json.dumps(program)
    if where == "input name":
        text = text.replace('"x"', json.dumps(f"x=open({marker!r}, 'w')"))
    elif where == "weight name":
        config = f"{top}/data/weights/model_weights_config.json"
        planted = json.dumps(f'weight"+str(open("{marker}", "w"))+"')
        members[config] = members[config].decode().replace('"weight"', planted).encode()
        text = text.replace('"parameter_name": "weight"', f'"parameter_name": {planted}')
    members[name] = text.encode()
