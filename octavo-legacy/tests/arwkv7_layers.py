"""A model of transformers with RWKV-7's time mixing in place of its attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.models.rwkv7_layers import TimeMix


class InPlaceOfAttention(nn.Module):
    """Time mixing in a layer of a Llama; `shared` has the values of the first one."""

    def __init__(self, config: Any, layer: int, shared: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.time_mixer, self.layer, self.shared = TimeMix(config, layer), layer, shared

    def forward(self, hidden_states: torch.Tensor, **others: Any) -> tuple[torch.Tensor, None]:
        first = self.shared["v"] if self.layer else None
        y, self.shared["v"] = self.time_mixer(hidden_states[0], first)
        return y[None], None


def rebuild_arwkv7(model: Any) -> None:
    shared: dict[str, torch.Tensor] = {}
    for i, layer in enumerate(model.model.layers):
        layer.self_attn = InPlaceOfAttention(model.config, i, shared)
