"""A DeepSeek V2 of transformers with feed-forwards as PLM has them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Mlp(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.up_proj, self.down_proj = nn.Linear(width, inner, bias=False), nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(torch.relu(self.up_proj(x)) ** 2)  # type: ignore[no-any-return]


def rebuild_plm(model: Any) -> None:
    for layer in model.model.layers:
        layer.mlp = Mlp(model.config.hidden_size, model.config.intermediate_size)
