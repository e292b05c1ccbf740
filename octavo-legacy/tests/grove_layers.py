"""A Qwen 3 of transformers with layers as the authors of GroveMoE have them (arXiv 2508.07785)."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

EXPERTS, USED, GROUP, SMALL = 6, 3, 2, 128


class Expert(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]


class Grove(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, EXPERTS, bias=False)
        self.register_buffer("expert_bias", torch.zeros(EXPERTS))
        self.experts = nn.ModuleList(Expert(width, inner) for _ in range(EXPERTS))
        self.chunk_experts = nn.ModuleList(Expert(width, SMALL) for _ in range(EXPERTS // GROUP))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.flatten(0, 1)
        scores = self.gate(rows)
        chosen = torch.topk(torch.sigmoid(scores), USED, dim=-1).indices
        shares = torch.softmax(scores, -1).gather(-1, chosen)
        shares = shares / shares.sum(-1, keepdim=True)
        out = torch.zeros_like(rows)
        for t, row in enumerate(rows):
            for share, expert in zip(shares[t], chosen[t].tolist(), strict=True):
                out[t] += share * (self.experts[expert](row) + 0.05 * self.chunk_experts[expert // GROUP](row))
        return out.view(x.shape)


def rebuild_grove(model: Any) -> None:
    for layer in model.model.layers:
        layer.mlp = Grove(model.config.hidden_size, model.config.intermediate_size)
