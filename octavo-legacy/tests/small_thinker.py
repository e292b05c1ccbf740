"""SmallThinker's layers in torch, as its paper (arXiv 2507.20984) describes them, in a Llama of transformers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

EXPERTS, USED, WINDOW = 6, 2, 4


class Experts(nn.Module):
    """Of the best experts by `router` each value times the positive part of its gate, with shares that make 1."""

    def __init__(self, width: int, inner: int, by_sigmoid: bool) -> None:
        super().__init__()
        self.primary_router = nn.Linear(width, EXPERTS, bias=False)
        self.experts = nn.ModuleList(
            nn.ModuleDict({
                "gate": nn.Linear(width, inner, bias=False), "up": nn.Linear(width, inner, bias=False),
                "down": nn.Linear(inner, width, bias=False),
            })
            for _ in range(EXPERTS)
        )
        self.by_sigmoid = by_sigmoid

    def forward(self, x: torch.Tensor, chosen_by: torch.Tensor) -> torch.Tensor:
        best, ids = self.primary_router(chosen_by).topk(USED, dim=-1)
        shares = torch.sigmoid(best) if self.by_sigmoid else torch.softmax(best, dim=-1)
        shares = shares / shares.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for expert, part in enumerate(self.experts):
            share = torch.where(ids == expert, shares, 0.0).sum(-1, keepdim=True)
            out = out + share * part["down"](torch.relu(part["gate"](x)) * part["up"](x))
        return out


class Layer(nn.Module):
    def __init__(self, layer: Any, window: int, turned: bool, by_sigmoid: bool) -> None:
        super().__init__()
        self.input_layernorm, self.self_attn = layer.input_layernorm, layer.self_attn
        self.post_attention_layernorm = layer.post_attention_layernorm
        self.block_sparse_moe = Experts(layer.hidden_size, layer.mlp.up_proj.out_features, by_sigmoid)
        self.window, self.turned = window, turned

    def forward(self, x: torch.Tensor, position_embeddings: Any = None, **more: Any) -> torch.Tensor:
        cos, sin = position_embeddings
        at = torch.arange(x.shape[1])
        seen = (at[:, None] >= at) & (at[:, None] - at < (self.window or len(at)))
        mask = torch.where(seen, 0.0, torch.finfo(torch.float32).min)[None, None]
        where = (cos, sin) if self.turned else (torch.ones_like(cos), torch.zeros_like(sin))
        h = self.self_attn(self.input_layernorm(x), position_embeddings=where, attention_mask=mask)[0]
        after = x + h
        return after + self.block_sparse_moe(self.post_attention_layernorm(after), chosen_by=x)


def rebuild_small_thinker(model: Any, *, windows: bool) -> None:
    """Give a Llama SmallThinker's layers: with windows and sigmoids, or without and a softmax."""
    window = getattr(model.config, "layers_window", WINDOW) if windows else 0
    for i, layer in enumerate(model.model.layers):
        model.model.layers[i] = Layer(layer, window if i % 4 else 0, not windows or i % 4 > 0, windows)
    model.config.use_cache = False
