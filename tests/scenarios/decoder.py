"""A small decoder, as language models have it: RMSNorm, causal attention, a gated MLP."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional

VOCABULARY, WIDTH, HEADS, HIDDEN, LAYERS = 128, 64, 4, 160, 2


class RMSNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = RMSNorm(), RMSNorm()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate, self.up = nn.Linear(WIDTH, HIDDEN, bias=False), nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x):
        batch, length, _ = x.shape
        qkv = self.qkv(self.before_attention(x)).view(batch, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind()
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, WIDTH))
        normed = self.before_mlp(x)
        return x + self.down(functional.silu(self.gate(normed)) * self.up(normed))


class Decoder(nn.Module):
    """Tokens in, logits out."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = RMSNorm()
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def make(device: str) -> Decoder:
    """The same one in each process."""
    torch.manual_seed(0)
    return Decoder().to(device).eval()


def prompt(batch: int, length: int, device: str):
    """The tokens of one request, other ones for each shape."""
    generator = torch.Generator().manual_seed(1000 * batch + length)
    return torch.randint(0, VOCABULARY, (batch, length), generator=generator).to(device)


def reference(model: Decoder):
    """What a result is compared with: eager, in double precision."""
    return copy.deepcopy(model).double()
