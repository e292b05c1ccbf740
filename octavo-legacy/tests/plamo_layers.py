"""PLaMo's layers, in a Llama of transformers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Layer(nn.Module):
    """Attention and feed-forward side by side behind one norm."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.norm, self.self_attn, self.mlp = layer.input_layernorm, layer.self_attn, layer.mlp

    def forward(self, x: torch.Tensor, **more: Any) -> torch.Tensor:
        h = self.norm(x)
        out: torch.Tensor = x + self.self_attn(h, **more)[0] + self.mlp(h)
        return out


def rebuild_plamo(model: Any) -> None:
    """Give a Llama PLaMo's layers."""
    for i, layer in enumerate(model.model.layers):
        model.model.layers[i] = Layer(layer)
    model.config.use_cache = False
