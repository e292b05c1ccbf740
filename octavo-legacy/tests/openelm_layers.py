"""A Qwen 3 of transformers whose layers have other sizes, as OpenELM's have: of the classes that it is made of."""

from __future__ import annotations

import copy
from typing import Any

from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention, Qwen3MLP

HEADS, KEYS, TIMES, DIVISOR = [4, 8, 4], [1, 2, 2], [1.0, 2.0, 1.0], 32


def rebuild_openelm(model: Any) -> None:
    """Give the layers of a Qwen 3 these heads and widths."""
    for i, layer in enumerate(model.model.layers):
        config = copy.deepcopy(model.config)
        config.num_attention_heads, config.num_key_value_heads = HEADS[i], KEYS[i]
        config.intermediate_size = round(TIMES[i] * config.hidden_size / DIVISOR) * DIVISOR
        layer.self_attn, layer.mlp = Qwen3Attention(config, i), Qwen3MLP(config)  # type: ignore[no-untyped-call]
