"""The one table of what is known to be missing from upstream's cache keys, and what follows from a difference in it."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["PARTS", "Part"]

_TORCH, _VLLM = "https://github.com/pytorch/pytorch", "https://github.com/vllm-project/vllm"


class Part(NamedTuple):
    """A row: what ``title`` calls it to a person, ``why`` it does or does not change code, and the upstream ``issue``.

    ``refuses``: an entry that differs in it is not used; else that is only logged.
    """

    title: str
    refuses: bool
    why: str
    issue: str


PARTS: dict[str, Part] = {
    "schema": Part(
        "schema of a custom op",
        True,
        "what an op writes to, and defaults of its arguments, decide which calls stay in the graph, and in which order",
        f"{_TORCH}/issues/187319",
    ),
    "tags": Part(
        "tags of a custom op",
        True,
        "they decide on strides, on what CUDA graphs may hold, and on what is recomputed",
        f"{_TORCH}/pull/193499",
    ),
    "fake": Part(
        "fake implementation of a custom op",
        True,
        "shapes, strides and types of the results are constants in what is compiled",
        f"{_TORCH}/issues/160472",
    ),
    "autograd": Part(
        "gradient of a custom op",
        True,
        "the backward graph is traced through it",
        f"{_TORCH}/issues/144344",
    ),
    "body": Part(
        "decomposition of a custom op",
        True,
        "a triton_op's body, a decomposition or a lowering is traced through",
        f"{_TORCH}/issues/160472",
    ),
    "kernels": Part(
        "decomposition of a custom op by the dispatcher",
        True,
        "a composite implementation that a library was given is traced through, and one for Meta gives shapes",
        f"{_TORCH}/issues/160472",
    ),
    "callable": Part(
        "function allowed in the graph",
        True,
        "the key has its name, and AOTAutograd traces through it",
        f"{_TORCH}/pull/194658",
    ),
    "subclass": Part(
        "class of a tensor",
        True,
        "AOTAutograd traces through what a subclass does, and the key has no more of it than its metadata",
        f"{_TORCH}/issues/160472",
    ),
    "pattern": Part(
        "patterns of others in torch's passes",
        True,
        "they replace parts of the graph after the key was computed",
        f"{_TORCH}/issues/136883",
    ),
    "inlined": Part(
        "function inlined ahead of time",
        True,
        "what is loaded without being traced again keeps what Dynamo has inlined, whatever stands in its place now",
        f"{_TORCH}/pull/194389",
    ),
    "files": Part(
        "source file of a module",
        True,
        "the code that is traced after the key was computed calls what lies in it, or imports it",
        f"{_TORCH}/issues/160472",
    ),
    "values": Part(
        "values that a function inlined ahead of time finds outside",
        True,
        "guards that compare them may have been dropped, as vLLM does",
        f"{_TORCH}/pull/194389",
    ),
    "rank": Part(
        "rank, or number of ranks",
        True,
        "merged collectives, and code that asks for its rank, have it as a constant; other ranks' entries stay",
        f"{_TORCH}/issues/188332",
    ),
    "model": Part(
        "modules of vLLM's model",
        True,
        "LoRA and plugins put others in place of them, or choose another kernel; the graph names their parameters",
        f"{_VLLM}/issues/55383",
    ),
    "speculation": Part(
        "number of speculative tokens",
        True,
        "it is a size in the graph",
        f"{_VLLM}/issues/53366",
    ),
    "modalities": Part(
        "multimodal limits",
        True,
        "with none allowed, the model is called with other arguments",
        f"{_VLLM}/issues/50891",
    ),
    "variables": Part(
        "VLLM_* variables that vLLM does not declare",
        True,
        "a model or a plugin that reads one takes another branch; those that name places, ports or logs are left out",
        "https://github.com/1CatAI/1Cat-vLLM/pull/536",
    ),
    "configuration": Part(
        "vLLM's configuration, and VLLM_* variables that it declares",
        False,
        "what the graph can see of them is in vLLM's key, or in a row above",
        f"{_VLLM}/pull/26468",
    ),
    "driver": Part(
        "GPU driver",
        False,
        "kernels are compiled for the architecture, which is compared by itself; only measurements depend on it",
        f"{_TORCH}/pull/101027",
    ),
    "server": Part(
        "version of vLLM or SGLang",
        False,
        "what they put into a graph is in its key, and what their ops are made of is a row above",
        f"{_VLLM}/pull/11598",
    ),
}
