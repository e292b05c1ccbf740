"""A model of transformers whose attention falls with the distance instead of what it has for positions."""

from __future__ import annotations

from typing import Any

import torch

from tests.models.jina_bert import slopes


def attend_by_distance(model: Any) -> None:
    """Let a decoder with rope do without, all tokens at one position, and lose scores with the distance instead."""
    inner, loss = model.forward, torch.tensor(slopes(model.config.num_attention_heads))

    def forward(ids: torch.Tensor) -> Any:
        at = torch.arange(ids.shape[1])
        between = (at[:, None] - at).float()
        scores = torch.where(between < 0, torch.finfo(torch.float32).min, -loss[:, None, None] * between)
        return inner(ids, attention_mask=scores[None], position_ids=torch.zeros_like(ids))

    model.forward = forward


def put_layer_norms(model: Any, *, bias: bool = False) -> None:
    """Give a Llama layer norms, with biases or without."""

    def norm() -> torch.nn.LayerNorm:
        return torch.nn.LayerNorm(model.config.hidden_size, eps=model.config.rms_norm_eps, bias=bias)

    model.model.norm = norm()
    for layer in model.model.layers:
        layer.input_layernorm, layer.post_attention_layernorm = norm(), norm()
