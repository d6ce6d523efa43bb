"""A Llama, or a Granite, of random weights: each of its tokens depends on all layers.

The weights that vLLM and SGLang make up themselves are the same in both embeddings. So such a model repeats the last token,
whatever its layers compute.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file


def write_weights(place):
    """Write them beside the config.json in ``place``, unless they are there."""
    path = Path(place, "model.safetensors")
    if path.exists():
        return
    config = json.loads(Path(place, "config.json").read_text())
    width, inner, words = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    layer = {f"self_attn.{name}_proj": (width, width) for name in "qkvo"}
    layer |= {"mlp.gate_proj": (inner, width), "mlp.up_proj": (inner, width), "mlp.down_proj": (width, inner)}
    layer |= {"input_layernorm": (width,), "post_attention_layernorm": (width,)}
    shapes = {"model.embed_tokens": (words, width), "lm_head": (words, width), "model.norm": (width,)}
    for number in range(config["num_hidden_layers"]):
        shapes |= {f"model.layers.{number}.{name}": shape for name, shape in layer.items()}
    generator = torch.Generator().manual_seed(0)
    weights = {
        f"{name}.weight": torch.randn(shape, generator=generator) / width**0.5 if len(shape) > 1 else torch.ones(shape)
        for name, shape in shapes.items()
    }
    save_file({name: weight.bfloat16() for name, weight in weights.items()}, path)
