"""Arctic's layers in torch, as its authors describe them ("Snowflake Arctic", 2024), in a Llama of transformers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

EXPERTS, USED = 6, 2


def gated(width: int, inner: int) -> nn.ModuleDict:
    sizes = {"w1": (width, inner), "w3": (width, inner), "w2": (inner, width)}
    return nn.ModuleDict({name: nn.Linear(*size, bias=False) for name, size in sizes.items()})


def through(part: Any, x: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = part["w2"](nn.functional.silu(part["w1"](x)) * part["w3"](x))
    return out


class Layer(nn.Module):
    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.input_layernorm, self.self_attn = layer.input_layernorm, layer.self_attn
        self.post_attention_layernorm = layer.post_attention_layernorm
        width, inner = layer.hidden_size, layer.mlp.up_proj.out_features
        self.residual_layernorm = type(layer.input_layernorm)(width, eps=layer.input_layernorm.variance_epsilon)
        self.residual_mlp = gated(width, width)
        gate, experts = (
            nn.Linear(width, EXPERTS, bias=False),
            nn.ModuleList(gated(width, inner) for _ in range(EXPERTS)),
        )
        self.block_sparse_moe = nn.ModuleDict({"gate": gate, "experts": experts})

    def forward(self, x: torch.Tensor, **more: Any) -> torch.Tensor:
        y = x + self.self_attn(self.input_layernorm(x), **more)[0]
        y = y + through(self.residual_mlp, self.residual_layernorm(y))
        h = self.post_attention_layernorm(x)
        best, ids = torch.softmax(self.block_sparse_moe["gate"](h), dim=-1).topk(USED, dim=-1)
        shares = best / best.sum(-1, keepdim=True)
        for i, expert in enumerate(self.block_sparse_moe["experts"]):  # type: ignore[arg-type]
            y = y + torch.where(ids == i, shares, 0.0).sum(-1, keepdim=True) * through(expert, h)
        return y


def rebuild_arctic(model: Any) -> None:
    """Give a Llama Arctic's layers."""
    for i, layer in enumerate(model.model.layers):
        model.model.layers[i] = Layer(layer)
    model.config.use_cache = False
