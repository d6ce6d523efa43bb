"""A backend as vLLM's: the graph is split at attention, each other piece compiled by itself, the whole saved as one file.

``one-file`` is vLLM's default since torch 2.12: the compiled pieces are in the file of the function. ``artifacts`` is
what it did before: they lie beside it, each a CompiledArtifact.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import pickle
import sys
from typing import ClassVar
from unittest import mock

import sympy
import torch
import torch._inductor
from torch._dynamo.aot_compile_types import SerializableCallable
from torch._functorch import config as functorch_config
from torch._inductor.compile_fx import graph_returns_tuple
from torch._subclasses import FakeTensorMode
from torch.fx._graph_pickler import GraphPickler, Options
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.passes.split_module import split_module
from torch.nn import functional

OPTIONS = {"config_patches": {}}


class Settings:
    """Of this process: how and where the pieces are saved; and which were compiled in it."""

    one_file = True
    directory = ""
    compiled: ClassVar[list[str]] = []


class Served(SerializableCallable):
    """The graph with its compiled pieces; what is in the file of a function that was compiled ahead of time."""

    def __init__(self, graph, pieces) -> None:
        self.graph = graph
        self.pieces = pieces
        children = dict(graph.named_children())
        for name, piece in pieces.items():
            children[name] = _Piece(piece, graph_returns_tuple(children[name]))
        self._call = torch.fx.GraphModule(children, graph.graph)

    def __call__(self, *args):
        return self._call(*args)

    @classmethod
    def serialize_compile_artifacts(cls, fn) -> bytes:
        for module in (fn.graph, *fn.graph.children()):
            for node in module.graph.nodes:
                node.meta.pop("source_fn_stack", None)
                node.meta.pop("nn_module_stack", None)
        with _pickling_graphs():
            state = {
                "graph": GraphPickler.dumps(fn.graph, Options(ops_filter=None)),
                "pieces": dict.fromkeys(fn.pieces),
            }
        if Settings.one_file:
            with functorch_config.patch("bundled_autograd_cache", True):
                state["pieces"] = {name: pickle.dumps(piece.serialize()) for name, piece in fn.pieces.items()}
        return pickle.dumps(state)

    @classmethod
    def deserialize_compile_artifacts(cls, data: bytes):
        state = pickle.loads(data)
        graph = GraphPickler.loads(state["graph"], FakeTensorMode(shape_env=ShapeEnv()))
        graph.recompile()
        return cls(graph, {name: _load(name, content) for name, content in state["pieces"].items()})


class _Piece(torch.nn.Module):
    def __init__(self, compiled, returns_tuple) -> None:
        super().__init__()
        self.compiled = compiled
        self.returns_tuple = returns_tuple

    def forward(self, *args):
        result = self.compiled(*args)
        return result if self.returns_tuple or not isinstance(result, (tuple, list)) else result[0]


def _load(name, content):
    if content is None:
        return torch._inductor.CompiledArtifact.load(path=_path(name), format="binary")
    return sys.modules["torch._inductor.standalone_compile"].AOTCompiledArtifact.deserialize(pickle.loads(content))


def _path(name):
    return os.path.join(Settings.directory, f"artifact_{name}")


@contextlib.contextmanager
def _pickling_graphs():
    """As vLLM has it: what Dynamo's graphs refer to besides, and no pickle can hold."""
    reducer_override = GraphPickler.reducer_override

    def reduce(self, obj):
        if inspect.isclass(obj) and issubclass(obj, sympy.Function) and hasattr(obj, "_torch_unpickler"):
            return obj._torch_unpickler, (obj._torch_handler_name,)
        if isinstance(obj, FakeTensorMode):
            return type(None), ()
        return reducer_override(self, obj)

    with mock.patch.object(GraphPickler, "reducer_override", reduce):
        yield


def backend(graph, example_inputs):
    """For torch.compile."""
    split = split_module(graph, None, _partitions(graph).__getitem__, keep_original_order=True)
    pieces = {}
    for name, child in split.named_children():
        if not any(_is_attention(node) for node in child.graph.nodes):
            pieces[name] = _compile(name, child)
    return Served(split, pieces)


def _is_attention(node) -> bool:
    return node.op == "call_function" and node.target is functional.scaled_dot_product_attention


def _partitions(graph):
    """By node, the number of its piece: attention is one of its own."""
    number, found = 0, {}
    for node in graph.graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        number += _is_attention(node)
        found[node] = number
        number += _is_attention(node)
    return found


def _compile(name, child):
    Settings.compiled.append(name)
    inputs = [node.meta["example_value"] for node in child.graph.nodes if node.op == "placeholder"]
    artifact = torch._inductor.standalone_compile(
        child, inputs, dynamic_shapes="from_graph", options=OPTIONS, **({"aot": True} if Settings.one_file else {})
    )
    if not Settings.one_file:
        artifact.save(path=_path(name), format="binary")
    return artifact
