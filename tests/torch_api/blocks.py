"""A module of a user's own, with every kind of place that scales of channels can go between."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from octavo.torch import Fold

HEADS, SHARED, DIM = 4, 2, 32
"""Query heads, heads of keys and values, and values of a head."""


class Decoder(nn.Module):
    """Norm, attention whose heads share values, norm and a gated feed-forward; some channels of norms stand out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.norm1, self.norm2 = nn.LayerNorm(128), nn.RMSNorm(128)
        self.q, self.k, self.v = nn.Linear(128, 128), nn.Linear(128, SHARED * DIM), nn.Linear(128, SHARED * DIM)
        self.o = nn.Linear(128, 128, False)
        self.gate, self.up, self.down = nn.Linear(128, 256, False), nn.Linear(128, 256), nn.Linear(256, 128)
        with torch.no_grad():
            for norm in (self.norm1, self.norm2):
                norm.weight.mul_(torch.exp(0.5 * torch.randn(128)))
                norm.weight[3] *= 25
            self.norm1.bias.add_(0.1 * torch.randn(128))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        q, k, v = (
            layer(y).unflatten(-1, (-1, DIM)).transpose(-2, -3)
            for layer in (self.q, self.k, self.v)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        x = x + self.o(mixed.transpose(-2, -3).flatten(-2))
        y = self.norm2(x)
        made: Tensor = x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))
        return made


class Stack(nn.Module):
    """Two decoders and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.lm_head = nn.ModuleList([Decoder(), Decoder()]), nn.Linear(128, 8)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        for layer in self.layers:
            x = layer(x)
        return {"logits": self.lm_head(x)}


SHARES = [(i // DIM) // (HEADS // SHARED) * DIM + i % DIM for i in range(HEADS * DIM)]
"""The output of v that each input of o is of."""


def folds(prefix: str = "") -> list[Fold]:
    """The folds of a decoder."""

    def named(*names: str) -> list[str]:
        return [prefix + name for name in names]

    return [
        Fold(prefix + "norm1", named("q", "k", "v")), Fold(prefix + "v", named("o"), index=SHARES),
        Fold(prefix + "norm2", named("gate", "up")), Fold(prefix + "up", named("down")),
    ]


def all_folds() -> list[Fold]:
    """The folds of a stack."""
    return [fold for i in range(2) for fold in folds(f"layers.{i}.")]


def inputs(n: int = 4) -> list[Tensor]:
    """Batches [2, 24, 128]."""
    return list(torch.randn((n, 2, 24, 128), generator=torch.Generator().manual_seed(6)))
