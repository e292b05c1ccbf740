"""A Llama of transformers whose layers are as unlike as DeciLM's: of the classes that it is made of."""

from __future__ import annotations

import copy
from typing import Any

import torch
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaMLP

BLOCKS: list[dict[str, Any]] = [
    {"attention": {"n_heads_in_group": 1}, "ffn": {"ffn_mult": 1.5}},
    {"attention": {"n_heads_in_group": None, "replace_with_linear": True}, "ffn": {"ffn_mult": 5.0}},
    {"attention": {"n_heads_in_group": None, "no_op": True}, "ffn": {"ffn_mult": 0.5}},
    {"attention": {"n_heads_in_group": None, "no_op": True}, "ffn": {"ffn_mult": None, "no_op": True}},
    {
        "attention": {"n_heads_in_group": 2, "window_length": None, "sparsify": None},
        "ffn": {"ffn_mult": None, "no_op": True},
    },
]
"""Of the first layers; each has a cache of its own size, or none, and widths are 256 and 512."""


class Nothing(torch.nn.Module):
    """In place of a part that adds nothing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(x)


class NoAttention(torch.nn.Module):
    """In place of attention: nothing, or a matrix."""

    def __init__(self, width: int = 0) -> None:
        super().__init__()
        if width:
            self.linear_attn = torch.nn.Linear(width, width, bias=False)

    def forward(self, hidden_states: torch.Tensor, **more: Any) -> tuple[torch.Tensor, None]:
        layer = self.linear_attn if hasattr(self, "linear_attn") else torch.zeros_like
        return layer(hidden_states), None


def rebuild(model: Any) -> None:
    """Give the layers of a Llama the parts of BLOCKS."""
    for i, (layer, block) in enumerate(zip(model.model.layers, BLOCKS, strict=False)):
        config = copy.deepcopy(model.config)
        attention, width = block["attention"], config.hidden_size
        if group := attention["n_heads_in_group"]:
            config.num_key_value_heads = config.num_attention_heads // group
            layer.self_attn = LlamaAttention(config, i)
        else:
            layer.self_attn = NoAttention(width if attention.get("replace_with_linear") else 0)
        if attention.get("no_op"):
            layer.input_layernorm = torch.nn.Identity()
        if times := block["ffn"]["ffn_mult"]:
            config.intermediate_size = -(-int(2 * times * width / 3) // 256) * 256
            layer.mlp = LlamaMLP(config)  # type: ignore[no-untyped-call]
        else:
            layer.mlp, layer.post_attention_layernorm = Nothing(), torch.nn.Identity()
    model.config.use_cache = False
